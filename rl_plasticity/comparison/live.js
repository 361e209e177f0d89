"use strict";
// Fetches the sections of the page again and again and puts in what has changed; what was hidden stays hidden, and a
// table that was sorted stays sorted.

const every = 1000 * Number(document.querySelector('meta[name="every"]').content);
const lost = document.getElementById("lost");
const last = new Map();

async function fetched(path) {
  const answer = await fetch(path).catch(() => null);
  lost.hidden = answer?.ok ?? false;
  return lost.hidden ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

function take(page, id) {
  const section = page.getElementById(id);
  if (last.get(id) === section.innerHTML) return;
  last.set(id, section.innerHTML);
  const before = document.getElementById(id);
  const sorted = before.querySelector("th[aria-sort]");
  before.replaceWith(section);
  prepare(section);
  tip.hidden = true;
  const head = sorted && section.querySelectorAll("table.sortable th")[sorted.cellIndex];
  const way = sorted?.getAttribute("aria-sort");
  for (let i = 0; head && i < 2 && head.getAttribute("aria-sort") !== way; i++) head.firstChild.click();
}

async function refresh() {
  const now = await fetched("/");
  const comparison = now && (await fetched("/comparison"));
  if (now) {
    document.title = now.title;
    take(now, "status");
  }
  if (comparison) take(comparison, "comparison");
}

async function again() {
  await refresh().finally(() => setTimeout(again, every));
}

again();
