"""The pictures of docs/images, made from runs of this machine: pages of reports, and the console.

Run by `make images`. Everything is trained anew in a temporary folder, which takes a few minutes; the pages are drawn
by Chromium. Pictures are small enough to be looked at in a browser over a slow line.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.docs.browser import ABSENT, find_browser, take_picture

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
LARGEST = 250_000
"""Bytes of a picture."""
PHONE = 390
"""The width of a phone."""
NARROWEST = 500
"""The width of a window that is as narrow as Chromium makes one: narrower pages are looked at in a frame."""
LINES, COLUMNS = 26, 96
"""The size of the console in the picture of it."""
CONTROL = re.compile(r"\x1b\[(\??)(\d*)([A-Za-z])")


@dataclass(frozen=True)
class Picture:
    """A page and how it is looked at.

    Attributes:
        name: The file, without its ending.
        make: Trains, and returns the page.
        height: The height of the window.
        width: Its width.
        themed: Whether a picture of the dark page is taken as well.
    """

    name: str
    make: Callable[[], Path]
    height: int
    width: int = 1280
    themed: bool = False


def one_run() -> Path:
    """Train on digits, interrupted once, with all monitors; return the page."""
    from treadle.tools.report import write_report

    train_digits("runs/digits", 0.005, epochs=10, max_steps=200)
    train_digits("runs/digits", 0.005, epochs=10)
    return write_report([Path("runs/digits")])


def three_runs() -> Path:
    """Train three times on digits with other rates; return the page of all."""
    from treadle.tools.report import write_report

    rates = {"slow": 3e-4, "medium": 5e-3, "fast": 5e-2}
    for name, rate in rates.items():
        train_digits(f"runs/{name}", rate, epochs=8)
    return write_report([Path("runs") / name for name in rates], Path("three.html"))


def thirty_runs() -> Path:
    """Train thirty times on digits for a moment, with other rates; return the page of all."""
    from treadle.tools.report import write_report

    folders = [f"runs/sweep-{number:02}" for number in range(30)]
    for number, folder in enumerate(folders):
        train_digits(folder, 1e-4 * 1.26**number, epochs=3)
    return write_report([Path(folder) for folder in folders], Path("thirty.html"))


def train_digits(folder: str, rate: float, *, epochs: int, max_steps: int | None = None) -> None:
    """Train the network of the demo with all monitors."""
    import torchmetrics
    from torch.optim.lr_scheduler import OneCycleLR

    from examples.digits import digits, network
    from treadle import Trainer
    from treadle import TrainerPlaceholderValues as P
    from treadle.callbacks import GradientNormMonitor, LearningRateMonitor, StepTimer, ThroughputMonitor

    torch.manual_seed(0)
    train, held_out = digits()
    model = network()
    trainer = Trainer(
        model,
        loss_func=nn.CrossEntropyLoss(),
        optimizer=torch.optim.AdamW(model.parameters()),
        metrics={"accuracy": torchmetrics.Accuracy("multiclass", num_classes=10)},
        callbacks=(LearningRateMonitor, GradientNormMonitor, ThroughputMonitor, StepTimer),
        seed=0,
        run_dir=folder,
    )
    schedule = partial(OneCycleLR, max_lr=rate, epochs=P.NUM_EPOCHS, steps_per_epoch=P.NUM_UPDATE_STEPS_PER_EPOCH)
    trainer.train(
        train,
        num_epochs=epochs,
        max_steps=max_steps,
        eval_dataset=held_out,
        per_device_batch_size=32,
        create_scheduler_fn=schedule,
        log_every=5,
        resume="auto",
    )


def a_search() -> Path:
    """Search for a network for digits by trials, good and small at once; return the page."""
    from treadle import nas
    from treadle.tools.report import write_report

    nas.Search(
        make_space,
        judged,
        strategy="nsga2",
        objectives={"accuracy": "maximize", "parameters": "minimize"},
        trials=48,
        run_dir="runs/digits-search",
    ).run()
    return write_report([Path("runs/digits-search")])


def make_space() -> nn.Module:
    """Return networks for digits: how wide, with which activation, and with how much dropout."""
    from treadle import nas

    first = nas.ValueChoice([8, 16, 32, 64, 128], label="first width")
    second = nas.ValueChoice([8, 16, 32, 64], label="second width")
    activations = {"relu": nn.ReLU(), "gelu": nn.GELU(), "tanh": nn.Tanh(), "none": nn.Identity()}
    return nn.Sequential(
        nn.Flatten(),
        nas.Built(nn.Linear, 64, first),
        nas.LayerChoice(activations, label="activation"),
        nas.Built(nn.Dropout, nas.ValueChoice([0.0, 0.1, 0.2, 0.4], label="dropout")),
        nas.Built(nn.Linear, first, second),
        nn.ReLU(),
        nas.Built(nn.Linear, second, 10),
    )


def judged(network: nn.Module) -> dict[str, float]:
    """Train a network on digits for a moment; return its accuracy on the others, and its size."""
    from examples.digits import digits

    train, held_out = (part.dataset[part.indices] for part in digits())
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(train[0]), train[1]).backward()
        optimizer.step()
    accuracy = (network.eval()(held_out[0]).argmax(1) == held_out[1]).float().mean()
    return {"accuracy": float(accuracy), "parameters": sum(weight.numel() for weight in network.parameters())}


def a_one_shot_search() -> Path:
    """Search for a cell for digits by DARTS; return the page."""
    from examples.digits import digits
    from treadle import nas
    from treadle.nas.zoo import NasBench201Space
    from treadle.tools.report import write_report

    torch.manual_seed(0)
    train, _ = digits()
    trainer = nas.DartsTrainer(
        NasBench201Space(width=8, num_cells=1, in_channels=1),
        nn.functional.cross_entropy,
        metrics=lambda outputs, targets: {"accuracy": (outputs.argmax(1) == targets).float().mean()},
        num_epochs=8,
        dataset=train,
        batch_size=64,
        arc_learning_rate=0.03,
        seed=0,
        run_dir="runs/darts",
        callbacks=(),
    )
    trainer.fit()
    return write_report([Path("runs/darts")])


def a_leaderboard() -> Path:
    """Compare recommenders by `treadle recsys bench`, on what customers of the demonstration's shop bought."""
    from treadle.recsys.data.tables.demo_shop import purchases

    table = purchases()
    place = Path("data/shop/shop.inter")
    place.parent.mkdir(parents=True)
    rows = zip(*table.values(), strict=True)
    head = "\t".join(f"{name}:{'float' if name == 'timestamp' else 'token'}" for name in table)
    place.write_text("\n".join([head, *("\t".join(map(str, row)) for row in rows)]) + "\n")
    command = [sys.executable, "-m", "treadle.cli", "recsys", "bench", "--models", "Pop,ItemKNN,BPR,LightGCN,MultiVAE"]
    settings = ["--data_path=data", "--epochs=20", "--use_gpu=false", "--train_batch_size=256", "--learning_rate=0.01"]
    subprocess.run([*command, "--dataset", "shop", "--folder", "runs/shop", *settings], check=True)
    return Path("runs/shop/report.html")


PICTURES = (
    Picture("report", one_run, 1250, themed=True),
    Picture("report-phone", one_run, 1500, PHONE),
    Picture("three-runs", three_runs, 1350),
    Picture("thirty-runs", thirty_runs, 1350),
    Picture("search", a_search, 1250),
    Picture("one-shot-search", a_one_shot_search, 1500),
    Picture("leaderboard", a_leaderboard, 1250),
)


def main() -> None:
    """Make all pictures, or those that are asked for."""
    options = parse_options()
    if find_browser() is None:
        sys.exit(f"no pictures: {ABSENT}")
    options.into.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for picture in PICTURES:
            if not options.only or picture.name in options.only:
                with chdir(folder):
                    make(picture, options.into.resolve())
        if not options.only or "console" in options.only:
            write_console(options.into / "console.svg", Path(folder))


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.docs.screenshots", description=__doc__)
    names = [*(picture.name for picture in PICTURES), "console"]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"only these of {', '.join(names)}")
    parser.add_argument("--into", type=Path, default=IMAGES, metavar="DIR", help="where the pictures go")
    return parser.parse_args()


def make(picture: Picture, folder: Path) -> None:
    """Train for a picture, and take it."""
    try:
        page = picture.make()
    except LookupError as error:
        print(f"{picture.name}: left out: {error}")
        return
    take(page, folder / f"{picture.name}.png", picture)
    if picture.themed:
        take(themed(page), folder / f"{picture.name}-dark.png", picture)


def take(page: Path, target: Path, picture: Picture) -> None:
    """Take one picture.

    Raises:
        ValueError: It is too large.
    """
    if picture.width < NARROWEST:
        take_picture(framed(page.resolve(), picture), target, NARROWEST, picture.height)
        cut(target, picture.width)
    else:
        take_picture(page.resolve(), target, picture.width, picture.height)
    shrink(target)
    size = target.stat().st_size
    if size > LARGEST:
        raise ValueError(f"{target.name} has {size} bytes, more than {LARGEST}; show less of the page")
    print(f"{target.name}: {size} bytes")


def framed(page: Path, picture: Picture) -> Path:
    """Return a page that shows another one as narrow as a picture is to be."""
    frame = page.with_name("frame.html")
    size = f"width:{picture.width}px;height:{picture.height}px"
    frame.write_text(f"<body style='margin:0'><iframe src='{page.as_uri()}' style='border:0;{size}'></iframe></body>")
    return frame


def cut(path: Path, width: int) -> None:
    """Cut off what is beside the frame, where Pillow is there to do it."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(path) as image:
        narrow = image.crop((0, 0, width, image.height))
    narrow.save(path)


def shrink(path: Path) -> None:
    """Save a picture with few colours, where Pillow is there to do it: a page has no more than those."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


def themed(page: Path) -> Path:
    """Return a copy of a page that is dark from the start."""
    click = '<script>document.getElementById("theme").click();</script>'
    dark = page.with_name("dark.html")
    dark.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{click}</body>"), encoding="utf-8")
    return dark


def write_console(target: Path, folder: Path) -> None:
    """Run the demo as on a terminal, and draw what is to be seen there at its end."""
    from rich.console import Console
    from rich.text import Text

    program = ROOT / "examples" / "digits.py"
    told = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(program), "--epochs", "6", "--run-dir", "runs/demo"]
    # As bytes: read as text, the returns that redraw a line would become new lines.
    done = subprocess.run(command, cwd=folder, env={**os.environ, **told}, stdout=subprocess.PIPE, check=True)
    screen = screen_of(done.stdout.decode())[-LINES:]
    # The console is written into nothing: only what it recorded is wanted.
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, legacy_windows=False)
        for line in screen:
            console.print(Text.from_ansi(line))
        console.save_svg(str(target), title="make demo")
    print(f"{target.name}: {target.stat().st_size} bytes")


def screen_of(output: str) -> list[str]:
    """Return the lines of a terminal after some output; colours stay in them.

    >>> screen_of("one\\n\\r\\x1b[2Ktwo\\r\\x1b[2Kthree\\x1b[?25h\\nfour")
    ['one', 'three', 'four']
    """
    lines, row = [""], 0
    for piece in re.split(r"(\x1b\[\??\d*(?:;\d+)*[A-Za-z]|\n|\r)", output):
        control = CONTROL.fullmatch(piece)
        if piece == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif control and control[3] == "A":
            row = max(0, row - int(control[2] or 1))
        elif control and control[3] == "K":
            lines[row] = ""
        elif piece != "\r" and not (control and control[3] != "m"):
            lines[row] += piece
    return lines


if __name__ == "__main__":
    main()
