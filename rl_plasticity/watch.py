"""A trained policy as a video: ``python -m rl_plasticity.watch RUN``."""

if __name__ == "__main__":  # help and misspelt settings do not wait for torch
    from rl_plasticity import command_line

    command_line.at_once("watch")

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from rl_plasticity import command_line
from rl_plasticity.configs.commands import Watch
from rl_plasticity.envs import Envs
from rl_plasticity.errors import SettingsError
from rl_plasticity.runs.files import require_new, write_atomically
from rl_plasticity.runs.folder import RunFolder
from rl_plasticity.runs.trained import Trained

Picture = NDArray[np.uint8]


def watch(folder: RunFolder, w: Watch) -> Path:
    """Write a video of one run's episodes, which are those of `rl_plasticity.evaluate`, and print their returns.

    It has a picture for each env step and runs at the task's own speed, 1 / (control time step * action repeat)
    pictures a second.

    Returns:
        The video's path.
    """
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise SettingsError('videos need ffmpeg: pip install "rl_plasticity[video]"') from error
    trained = Trained.of(folder, w.device, w.checkpoint)
    run = trained.one_run(w.seed, w.run)
    name = trained.plan.names[run]
    path = folder.path / f"video_{trained.step}_{name.file_name}.mp4" if w.out is None else Path(w.out)
    require_new(path, ".mp4")
    if sys.platform == "linux":  # draw without a display; the simulator reads it when it is imported, below
        os.environ.setdefault("MUJOCO_GL", "egl")
    envs = make_envs(trained, w, run)
    agent, size, fps = trained.agent(envs), picture(envs).shape[1::-1], pictures_per_second(trained, envs)
    returns: list[float] = []

    def film(file: IO[bytes]) -> None:
        as_mp4: Any = {"macro_block_size": 2, "output_params": ["-f", "mp4"]}
        video = imageio_ffmpeg.write_frames(file.name, size, fps=fps, **as_mp4)
        video.send(None)
        with closing(video), tqdm(unit=" pictures", mininterval=1) as bar:

            def before_step() -> None:
                video.send(np.ascontiguousarray(picture(envs)))
                bar.update()

            chosen = (w.episodes, w.evaluation_seed, w.deterministic)
            returns.extend(trained.play(agent, envs, [run], *chosen, before_step)[0])

    write_atomically(path, film)
    envs.close()
    for number, value in enumerate(returns, start=1):
        print(f"seed {name.seed}, episode {number}: return {value:.1f}")
    print(f"wrote {path}")
    return path


def make_envs(trained: Trained, w: Watch, run: int) -> Envs:
    """The environment of one run, which draws its pictures.

    Raises:
        SettingsError: the environment cannot be made, cannot draw, or lacks the camera.
    """
    task = trained.settings.env.name
    if task.startswith(("gym:", "minatar:")):
        camera = "camera_name" if isinstance(w.camera, str) else "camera_id"
        given = {camera: w.camera, "width": w.width, "height": w.height}
        view: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    else:
        view = {"render_kwargs": {"camera_id": w.camera or 0, "width": w.width or 640, "height": w.height or 480}}
    try:
        envs = trained.envs([run], w.evaluation_seed, render={"render_mode": "rgb_array"} | view)
        for task_env in envs.vector.get_attr("envs")[0]:  # let a MuJoCo model draw pictures larger than its own
            env = task_env.unwrapped
            if vis := getattr(getattr(getattr(env, "physics", env), "model", None), "vis", None):
                vis.global_.offwidth = max(vis.global_.offwidth, w.width or 0)
                vis.global_.offheight = max(vis.global_.offheight, w.height or 0)
        envs.reset()
        picture(envs)
    except SettingsError:
        raise
    except Exception as error:  # the simulator, the graphics library and the task raise any kind
        why = str(error).partition(" was raised from the environment creator")[0]
        drawn = f"{view}, MUJOCO_GL={os.environ.get('MUJOCO_GL')} (egl needs the library libEGL)"
        raise SettingsError(f"cannot draw {task} with {drawn}: {why}") from error
    return envs


def picture(envs: Envs) -> Picture:
    """A picture of the only environment, ``[height, width, 3]``.

    Raises:
        TypeError: the environment returns no picture.
    """
    drawn = envs.vector.call("render")[0]
    if not (isinstance(drawn, np.ndarray) and drawn.ndim == 3 and drawn.shape[2] == 3):
        raise TypeError("the task gives no picture")
    return drawn.astype(np.uint8, copy=False)


def pictures_per_second(trained: Trained, envs: Envs) -> float:
    """1 / (control time step * action repeat); a task that does not tell its time step tells its rate."""
    env = envs.vector.get_attr("unwrapped")[0]
    step = getattr(env, "dt", None)
    rate = 1 / step if step else env.metadata.get("render_fps", 30)
    return float(rate / trained.settings.env.action_repeat)


if __name__ == "__main__":
    command_line.look_at(Watch, watch)
