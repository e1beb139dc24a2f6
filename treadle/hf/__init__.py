"""Models of transformers and adapters of PEFT: what a run keeps of them, and how they leave it again (extra `hf`).

A model of transformers trains behind every door without anything from here. A run with a folder keeps the configs of
the model and of its adapters, and the tokenizer of its collator, in `pretrained/`; from that and a checkpoint the model
is built again.
"""

from treadle.hf.export import export_pretrained, load_pretrained
from treadle.hf.fused_head import FusedHead
from treadle.hf.samples import GenerateSamples
from treadle.hf.tokenizer_files import TokenizerFiles

__all__ = ["FusedHead", "GenerateSamples", "TokenizerFiles", "export_pretrained", "load_pretrained"]
