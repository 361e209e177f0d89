"use strict";
// Fetches the sections of the page again and again and puts in what has changed; what was hidden stays hidden.

const every = 1000 * Number(document.querySelector('meta[name="every"]').content);
const lost = document.getElementById("lost");
const last = new Map();

async function fetched(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

function take(page, id) {
  const section = page.getElementById(id);
  if (last.get(id) === section.innerHTML) return;
  last.set(id, section.innerHTML);
  document.getElementById("groups").textContent = page.getElementById("groups").textContent;
  document.getElementById(id).replaceWith(section);
  prepare(section);
}

async function refresh() {
  try {
    const now = await fetched("/");
    document.title = now.title;
    take(now, "status");
    take(await fetched("/comparison"), "comparison");
    lost.hidden = true;
  } catch {
    lost.hidden = false;
  }
  setTimeout(refresh, every);
}

refresh();
