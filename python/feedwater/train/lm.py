"""A causal language model: transformers', from a folder, the hub or new, on text or JSON lines."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from feedwater.pipeline import Pipeline, open
from feedwater.train.checkpoints import read_weights
from feedwater.train.loop import finish, run
from feedwater.train.recipe import Recipe, Tensors, model_folder
from feedwater.train.settings import Settings, Wrong

# Width, layers and heads.
SIZES = {"tiny": (128, 2, 4), "base": (256, 4, 4), "small": (512, 8, 8), "medium": (768, 12, 12), "large": (1024, 24, 16)}
END = "<|endoftext|>"
# Of a tokenizer that is made from the data.
_VOCABULARY, _DOCUMENTS = 4096, 20_000


def train(settings: Settings) -> int:
    """Trains a language model. The exit code."""
    return finish(settings, [run(settings, lambda found: make(settings, found))])


def make(settings: Settings, found: Path | None) -> Lm:
    """The model of a checkpoint, of a folder or the hub, or a new one."""
    folder = found if found is not None else model_folder(settings.model) if settings.model else None
    if folder is None:
        tokenizer = Tokenizer.from_file(str(settings.tokenizer)) if settings.tokenizer else made_from(settings.data_dir)
        width, layers, heads = SIZES[settings.model_size]
        config = LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=max(settings.length, 512),
            bos_token_id=None, eos_token_id=tokenizer.token_to_id(END), tie_word_embeddings=True,
        )  # fmt: skip
        return Lm(settings, LlamaForCausalLM(config), None, tokenizer)  # type: ignore[no-untyped-call]
    if not (folder / "tokenizer.json").is_file():
        raise Wrong(f"`{folder}` has no tokenizer.json", "transformers writes one: `AutoTokenizer.from_pretrained(…).save_pretrained(…)`")
    read_weights(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Lm(settings, model, folder, Tokenizer.from_file(str(folder / "tokenizer.json")))


def made_from(data: Path) -> Tokenizer:
    """A byte-level BPE of the data's own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    texts = (text for batch in open(data).batch(64).shuffle(False).ranks(0, 1).numpy() for text in batch["texts"]["text"])
    tokenizer.train_from_iterator((text for _, text in zip(range(_DOCUMENTS), texts, strict=False)), trainer)
    return tokenizer


class Lm(Recipe):
    """The next token, from those before it."""

    name = "lm"
    learning_rate = 3e-4
    others = (
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "chat_template.jinja",
    )

    def __init__(self, settings: Settings, model: torch.nn.Module, folder: Path | None, tokenizer: Tokenizer) -> None:
        super().__init__(settings, model, folder)
        self.tokenizer = tokenizer
        size = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        if tokenizer.get_vocab_size() > size:
            raise Wrong(
                f"the tokenizer has {tokenizer.get_vocab_size()} tokens, and the model {size}: they do not belong together",
                "tokenizer.json and model.safetensors of the same folder",
            )
        most = getattr(model.config, "max_position_embeddings", settings.length)
        if settings.length > most:
            raise Wrong(f"--length {settings.length} is more than the {most} places that the model has", f"--length {most}")

    def pipeline(self, data: Pipeline, *, learning: bool) -> Pipeline:
        """Documents to rows of tokens: full ones, or one each."""
        file = self.tokenizer_file(self.tokenizer.to_str())
        length = self.settings.length
        if not self.settings.no_packing:
            return data.tokenize(file).batch(packed=(length, 1))
        pad: int | list[int] = [length] if self.settings.enable_static_shapes else 8
        flow = data.tokenize(file, max_tokens=length)._with("causal_labels")
        return flow.batch(1, mask=True, pad_fields={"input_ids": pad, "labels": pad})

    def loss(self, model: torch.nn.Module, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross entropy of each token but a row's first."""
        logits = model(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask"), use_cache=False).logits
        labels = batch["labels"][:, 1:]
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels.flatten(), reduction="sum")
        return loss, (labels != -100).sum()

    def save(self, folder: Path, weights: dict[str, torch.Tensor] | None) -> None:
        """Writes what `AutoModelForCausalLM` and `AutoTokenizer` load."""
        self.model.save_pretrained(folder, state_dict=weights)  # type: ignore[operator]
        self.tokenizer.save(str(folder / "tokenizer.json"))
        self.pass_on(folder)
        if not (folder / "tokenizer_config.json").exists():
            (folder / "tokenizer_config.json").write_text(f'{{"tokenizer_class": "TokenizersBackend", "eos_token": "{END}"}}')
