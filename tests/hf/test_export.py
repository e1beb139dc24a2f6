"""What a run of transformers leaves behind: folders that `from_pretrained` reloads, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cli.conftest import Treadle
from tests.hf.models import build
from tests.hf.text import lines, tokenizer
from tests.storages import place_in
from treadle import Trainer
from treadle.runs.reader import read_panels


def rows() -> list[Any]:
    text = tokenizer()
    return [text(line) for line in lines()]


def collator() -> Any:
    from transformers import DataCollatorForLanguageModeling

    return DataCollatorForLanguageModeling(tokenizer(), mlm=False)


def train(model: nn.Module, run: Any, steps: int = 3, **options: Any) -> Trainer:
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    trainer = Trainer(model, None, optimizer, callbacks=(), seed=0, device="cpu", run_dir=run, **options)
    trainer.train(rows(), max_steps=steps, per_device_batch_size=4, collate_fn=collator(), resume="auto")
    return trainer


def state_of(model: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_run_is_exported_as_a_folder_that_from_pretrained_reloads_bitwise(
    kind: str, tmp_path: Path, treadle: Treadle
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = train(build(kind, torch.bfloat16), tmp_path / "run").model
    told = treadle("export", str(tmp_path / "run"), "--format", "hf", "-o", str(tmp_path / "out")).stdout
    assert told.endswith(f"tensors written to {tmp_path / 'out'}\n")
    assert_same(state_of(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), state_of(model))
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("the cat sat") == tokenizer()("the cat sat")


def lora(model: nn.Module, **options: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", **options))


def prompts(model: nn.Module) -> Any:
    from peft import PromptTuningConfig, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(model, PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))


def ia3(model: nn.Module) -> Any:
    from peft import IA3Config, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(model, IA3Config(task_type="CAUSAL_LM"))


def base() -> Any:
    """A model long enough for the lines of text and a prompt before them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.hf.models import SMALL, TOKENS

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, **TOKENS, num_key_value_heads=1, max_position_embeddings=32))


@pytest.mark.parametrize("adapter", [lora, prompts, ia3])
def test_adapters_are_exported_as_a_folder_of_peft_bit_for_bit(adapter: Any, tmp_path: Path, treadle: Treadle) -> None:
    from peft import PeftModel, get_peft_model_state_dict

    before = base()
    model = train(adapter(base()), tmp_path / "run").model
    treadle("export", str(tmp_path / "run"), "--format", "hf", "-o", str(tmp_path / "out"))
    # PEFT trains no prompt on that it has loaded.
    trainable = adapter is not prompts
    found = PeftModel.from_pretrained(before, tmp_path / "out", is_trainable=trainable)
    assert_same(get_peft_model_state_dict(found), get_peft_model_state_dict(model))
    assert_same(state_of(found), state_of(model))
    if not trainable:
        return
    # What is reloaded trains, and leaves again with the same bits.
    again = train(found, tmp_path / "again", steps=2).model
    treadle("export", str(tmp_path / "again"), "--format", "hf", "-o", str(tmp_path / "out2"))
    assert_same(state_of(PeftModel.from_pretrained(base(), tmp_path / "out2")), state_of(again))
    assert not torch.equal(*(next(iter(get_peft_model_state_dict(one).values())) for one in (model, again)))


def test_merged_adapters_leave_a_plain_model(tmp_path: Path, treadle: Treadle) -> None:
    from transformers import AutoModelForCausalLM

    model = train(lora(base()), tmp_path / "run").model
    treadle("export", str(tmp_path / "run"), "--format", "hf", "--merge", "-o", str(tmp_path / "out"))
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        torch.testing.assert_close(found(ids).logits, model.eval()(ids).logits, rtol=0, atol=1e-6)
    assert_same(state_of(found), state_of(model.merge_and_unload()))


def refused(treadle: Treadle, *arguments: str) -> str:
    return " ".join(treadle("export", *arguments, status=1).stderr.split())


def test_what_cannot_be_exported_for_transformers_is_refused_with_the_reason(tmp_path: Path, treadle: Treadle) -> None:
    model = nn.Linear(2, 1)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=(), run_dir="plain")
    trainer.train([(torch.ones(2), torch.zeros(1))] * 4, num_epochs=1)
    assert "plain holds no pretrained/config.json: a run keeps it whose model is" in refused(
        treadle, "plain", "-f", "hf"
    )
    train(build("gpt2"), tmp_path / "run")
    assert "run has no adapters to merge" in refused(treadle, "run", "-f", "hf", "--merge")
    Path("model").mkdir()
    Path("model/notes.txt").touch()
    assert refused(treadle, "run", "-f", "hf").endswith("model is there already; give --output a new folder")
    assert "--merge is for --format hf, onnx and torch.export alone" in refused(treadle, "run", "--merge")
    assert "exclude each other" in refused(treadle, "run", "--torch", "-f", "hf")
    assert "its name says torch" in refused(treadle, "run", "-f", "safetensors", "-o", "x.pt")


def test_a_model_of_ones_own_is_exported_by_its_program(tmp_path: Path, treadle: Treadle) -> None:
    from transformers import GPT2LMHeadModel

    class Mine(GPT2LMHeadModel):
        pass

    train(Mine(build("gpt2").config), tmp_path / "run")
    assert "is a Mine, which transformers does not have; call save_pretrained()" in refused(treadle, "run", "-f", "hf")


def test_an_adapter_that_changed_the_weights_below_it_leaves_only_merged(tmp_path: Path, treadle: Treadle) -> None:
    from transformers import AutoModelForCausalLM

    model = train(lora(base(), init_lora_weights="pissa"), tmp_path / "run").model
    assert "began with init_lora_weights='pissa', which changed the weights below it" in refused(
        treadle, "run", "-f", "hf"
    )
    treadle("export", "run", "-f", "hf", "--merge")
    assert_same(state_of(AutoModelForCausalLM.from_pretrained("model")), state_of(model.merge_and_unload()))


def test_the_best_checkpoint_and_a_file_for_torch(tmp_path: Path, treadle: Treadle) -> None:
    model = train(build("gpt2"), tmp_path / "run").model
    treadle("export", "run", "--format", "torch")
    assert_same(torch.load("model.pt", weights_only=True), state_of(model))
    assert "holds no best checkpoint" in refused(treadle, "run", "-f", "hf", "--best", "-o", "best")


def test_a_config_that_cannot_be_written_is_told_and_the_run_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import GPT2Config

    class Strict(GPT2Config):
        def save_pretrained(self, *arguments: Any, **options: Any) -> None:
            raise ValueError("this config is not to be written")

    model = build("gpt2")
    model.config = Strict(**model.config.to_dict())
    assert train(model, tmp_path / "run").progress.step == 3
    told = f"{tmp_path / 'run/pretrained'} is not complete, and `treadle export --format hf` may fail: this config is"
    assert told in capsys.readouterr().out
    assert (tmp_path / "run/pretrained/tokenizer.json").exists()


def test_a_run_that_is_kept_in_a_storage_is_exported_from_there(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from treadle.hf import export_pretrained, load_pretrained

    place = place_in("sqlite", tmp_path / "kept")
    model = train(base(), place).model
    assert_same(state_of(load_pretrained(place)), state_of(model))
    assert export_pretrained(place, tmp_path / "out") == len(list(model.parameters()))
    assert_same(state_of(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), state_of(model))


CONFIG = """
import torch
from tests.hf.models import Padded
from tests.hf.text import tokenizer
from transformers import AutoModelForCausalLM, GPT2Config
from treadle.config import LazyCall, get_config
from treadle.hf import GenerateSamples, TokenizerFiles

shape = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 12, "vocab_size": 40}
model = LazyCall(AutoModelForCausalLM.from_config)(GPT2Config(**shape, bos_token_id=0, eos_token_id=1))
optim = LazyCall(torch.optim.AdamW)(lr=1e-3)
dataloader = {"train": LazyCall(Padded)()}
train = get_config("common/train.py").train
train.update(train_iter=4, train_micro_batch_size=4, checkpointer={"period": 2}, dist={"device_type": "cpu"})
text = LazyCall(tokenizer)()
train.callbacks = [
    LazyCall(GenerateSamples)(tokenizer=text, prompts=["the cat"], every=2, max_new_tokens=2),
    LazyCall(TokenizerFiles)(tokenizer=text),
]
"""


def test_a_run_of_a_config_is_exported_for_transformers(project: Path, treadle: Treadle) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    Path("gpt.py").write_text(CONFIG)
    treadle("train", "gpt.py", "--run-dir", "runs/gpt")
    treadle("export", "runs/gpt", "--format", "hf", "-o", "out")
    treadle("export", "runs/gpt", "--format", "torch", "-o", "out.pt")
    found = state_of(AutoModelForCausalLM.from_pretrained("out"))
    assert_same(found, torch.load("out.pt", weights_only=True))
    assert AutoTokenizer.from_pretrained("out")("the cat") == tokenizer()("the cat")
    (panel,) = read_panels(Path("runs/gpt"))
    assert [(row[0], row[1]) for row in panel.rows] == [(4, "the cat"), (2, "the cat")]
    assert "GPT2Config\n" in treadle("config", "show", "gpt.py").stdout
