import os
import re
import shutil
import subprocess
import sys

import folders
import gymnasium as gym
import numpy as np
import pytest
from conftest import refused
from imageio_ffmpeg import get_ffmpeg_exe

from rl_plasticity.configs import schema
from rl_plasticity.configs.commands import Evaluate, Watch
from rl_plasticity.evaluate import evaluate
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.watch import watch

SMALL = [*folders.SMALL, "eval_episodes=2", "total_env_steps=2", "replay_ratio=0", "seeds=2", "seed=3"]


class Picture(gym.Env):
    """Draws red = 80 * env steps since the reset, green = 100 * the start state; episodes have 4 env steps."""

    observation_space = gym.spaces.Box(-9, 9, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))
    dt = 0.05

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start, self.t = int(self.np_random.integers(3)), 0
        return self.observe(), {}

    def observe(self):
        return np.array([self.start, self.t], np.float32)

    def step(self, action):
        self.t += 1
        return self.observe(), self.start + float(action[0]), False, self.t == 4, {}

    def render(self):
        picture = np.zeros((63, 47, 3), np.uint8)
        picture[:] = (80 * self.t, 100 * self.start, 0)
        return picture


gym.register("PictureForTests-v0", Picture)
gym.register("NoRenderingForTests-v0", lambda: Picture())  # which takes no render_mode


def run(arguments, out):
    return folders.run([*SMALL, *arguments], out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(["env=gym:PictureForTests-v0"], tmp_path_factory.mktemp("pictures") / "run")


@pytest.fixture
def pictures(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def call(folder, *arguments):
    watch(RunFolder(folder), schema.load(Watch, arguments))


def pixels(path, height, width):
    """The pictures of a video, ``[pictures, height, width, 3]``, and how many there are a second."""
    options = "-f rawvideo -pix_fmt rgb24 -fps_mode passthrough -"
    done = subprocess.run([get_ffmpeg_exe(), "-i", str(path), *options.split()], capture_output=True, check=True)
    rate = re.search(rb"Video: h264.* ([\d.]+) fps", done.stderr)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3), float(rate[1])


def test_the_video_shows_each_state_that_the_policy_acts_in_once_in_order(pictures):
    call(pictures, "episodes=3")
    found, fps = pixels(pictures / "video_2_seed3.mp4", 64, 48)  # sides padded to even numbers
    assert fps == 20  # the speed of the task
    red, green = (found[:, 5:-5, 5:-5, i].mean((1, 2)) for i in range(2))
    assert red == pytest.approx([0, 80, 160, 240] * 3, abs=8)
    starts = np.rint(green.reshape(3, 4) / 100)
    assert (starts == starts[:, :1]).all()
    assert len(set(starts[:, 0])) > 1


def test_it_plays_at_the_speed_of_the_task_whatever_the_action_repeat(tmp_path):
    twice = run(["env=gym:PictureForTests-v0", "env.action_repeat=2"], tmp_path / "twice")
    call(twice)
    found, fps = pixels(twice / "video_2_seed3.mp4", 64, 48)
    assert (len(found), fps) == (2, 10)  # not 4 and 20, as without a repeat


def test_the_episodes_are_those_of_evaluate(pictures, tmp_path, capsys):
    for seed in (3, 4):
        settings = [f"seed={seed}", "episodes=3", "evaluation_seed=7"]
        out = tmp_path / f"{seed}.csv"
        evaluate(RunFolder(pictures), schema.load(Evaluate, [*settings, f"out={out}"]))
        capsys.readouterr()
        call(pictures, *settings)
        returns = [float(line.split(",")[3]) for line in out.read_text().splitlines()[1:]]
        said = capsys.readouterr().out.splitlines()
        assert said[:3] == [f"seed {seed}, episode {n}: return {r:.1f}" for n, r in enumerate(returns, start=1)]
        assert said[3] == f"wrote {pictures / f'video_2_seed{seed}.mp4'}"


def test_of_settings_side_by_side_one_has_to_be_chosen_and_those_there_are_are_named(tmp_path, capsys):
    folder = run(["env=gym:PictureForTests-v0", "reg=[none,l2]", "reg.l2.coef=[0.1,0.2]"], tmp_path / "run")
    which = ["run=0 (reg.name=none)", "run=2 (reg.name=l2 reg.coef=0.1)", "run=4 (reg.name=l2 reg.coef=0.2)"]
    refused(lambda: call(folder), "seed 3", *which)
    assert [*folder.glob("*.mp4")] == []
    call(folder, "run=3")
    assert capsys.readouterr().out.startswith("seed 4, episode 1: return")
    assert (folder / "video_2_reg.name=l2_reg.coef=0.1_seed4.mp4").exists()


def test_a_video_that_exists_is_kept(pictures, tmp_path):
    call(pictures)
    before = (pictures / "video_2_seed3.mp4").read_bytes()
    refused(lambda: call(pictures), "video_2_seed3.mp4 exists", "out=")
    assert (pictures / "video_2_seed3.mp4").read_bytes() == before
    call(pictures, f"out={tmp_path / 'other.mp4'}")
    assert (tmp_path / "other.mp4").read_bytes() == before


@pytest.mark.parametrize(("env", "arguments", "names"), [
    ("PictureForTests-v0", ["camera=1.5"], ["camera", "from -1 up, a string or null", "got 1.5"]),
    ("NoRenderingForTests-v0", [], ["'render_mode'"]),
])  # fmt: skip
def test_what_cannot_be_drawn_is_bad_input(env, arguments, names, pictures):
    config = pictures / "config.yaml"
    config.write_text(config.read_text().replace("PictureForTests-v0", env))
    before = sorted(pictures.iterdir())
    refused(lambda: call(pictures, *arguments), *names)
    assert sorted(pictures.iterdir()) == before


def environment(**more):
    """No display, and no choice made of how to draw."""
    kept = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")}
    return kept | more


def test_deepmind_control_is_drawn_without_a_display_in_the_size_wanted(tmp_path):
    tasks = ["env.sequence=[walker-stand,walker-walk]", "env.switch_every_env_steps=6"]
    short = ["env.action_repeat=250", "total_env_steps=12", "eval_episodes=1", "seeds=1"]
    folder = run([*tasks, *short], tmp_path / "run")  # it ends in the second
    code = """if True:
        import sys
        from rl_plasticity.configs import commands, schema
        from rl_plasticity.runs.folder import RunFolder
        from rl_plasticity.watch import watch
        settings = ["camera=back", "width=700", "height=64", f"out={sys.argv[1]}/back.mp4"]  # wider than its own
        watch(RunFolder(sys.argv[1]), schema.load(commands.Watch, settings))
    """
    # A display that is said to be there and is not: the choice of how to draw is the command's.
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], env=environment(DISPLAY=":987"), capture_output=True, text=True
    )
    if done.returncode:
        bare = "import mujoco; mujoco.Renderer(mujoco.MjModel.from_xml_string('<mujoco/>')).render()"
        bare = subprocess.run([sys.executable, "-c", bare], env=environment(MUJOCO_GL="egl"), capture_output=True)
        assert bare.returncode, done.stderr
        pytest.skip(f"MuJoCo cannot draw here: {bare.stderr.decode()[-200:]}")
    found, rate = pixels(folder / "back.mp4", 64, 700)
    assert (len(found), rate) == (4, 0.16)  # 250 time steps of 25 ms
    assert found[0].std() > 5  # not blank
    assert np.abs(found[1].astype(float) - found[0]).max() > 20  # and it moves
