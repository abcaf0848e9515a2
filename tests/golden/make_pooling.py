#!/usr/bin/env python3
"""Makes models/qwen3_embedding, a small random checkpoint as Qwen3-Embedding's folders are laid out (the decoder
alone, as sentence-transformers writes it; a tokenizer that appends <|endoftext|>), and pooling.json: what transformers
makes of texts with it, in fp32 with eager attention. Needs torch, transformers, tokenizers, safetensors.

    make_pooling.py

`no`, `yes`: the ids of these tokens. `embeddings`: `text`, its `ids`, and the `vector`: the last token's hidden state behind the final norm, scaled to length
1. `pairs`: `query`, `document`, perhaps `instruction`; the `ids` of the prompt that Qwen3-Reranker's model card
writes around them, and the `score`: softmax over the logits of "no" and "yes", of the latter.
"""
import json
import pathlib
import shutil

import safetensors.torch
import tokenizers
import torch
import transformers

GOLDEN = pathlib.Path(__file__).resolve().parent
FOLDER = GOLDEN / "models" / "qwen3_embedding"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# The model card's code, https://huggingface.co/Qwen/Qwen3-Reranker-0.6B
PREFIX = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
          "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n")
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

TEXTS = ["Hello", "What is Baton?", "The capital of China is Beijing.", "x", "naïve café 北京 \U0001f600", " two  spaces ",
         "Gravity is a force that attracts two bodies towards each other. " * 12,
         "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:What is gravity?"]
PAIRS = [("What is the capital of China?", "The capital of China is Beijing.", None),
         ("What is the capital of China?", "Gravity is a force that attracts two bodies.", None),
         ("Explain gravity", "Gravity is a force that attracts two bodies towards each other. " * 6, None),
         ("Explain gravity", "Gravity.", "Find what a child would understand"),
         ("a", "", None)]


def train_tokenizer():
    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    raw.train_from_iterator([PREFIX, SUFFIX, INSTRUCTION, "yes no\n" * 50, *TEXTS], trainer)
    raw.add_special_tokens([tokenizers.AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    end = raw.token_to_id("<|endoftext|>")
    raw.post_processor = tokenizers.processors.Sequence([
        tokenizers.processors.ByteLevel(trim_offsets=False),
        tokenizers.processors.TemplateProcessing(single="$A <|endoftext|>", pair="$A <|endoftext|> $B <|endoftext|>",
                                                 special_tokens=[("<|endoftext|>", end)])])
    return raw


def write_folder(raw):
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    raw.save(str(FOLDER / "tokenizer.json"))
    end = raw.token_to_id("<|im_end|>")
    config = transformers.Qwen3Config(
        vocab_size=raw.get_vocab_size(), hidden_size=40, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, intermediate_size=64, max_position_embeddings=1024, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, initializer_range=0.2,
        bos_token_id=raw.token_to_id("<|endoftext|>"), eos_token_id=end)
    torch.manual_seed(23)
    model = transformers.Qwen3ForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.2 * torch.randn(parameter.shape))
            parameter.copy_(parameter.to(torch.bfloat16))
    config.architectures = ["Qwen3ForCausalLM"]
    config.dtype = torch.bfloat16
    config.save_pretrained(FOLDER)
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in model.model.state_dict().items()}
    safetensors.torch.save_file(tensors, FOLDER / "model.safetensors", metadata={"format": "pt"})
    (FOLDER / "model.safetensors").chmod(0o644)
    files = {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
                                  "pad_token": "<|endoftext|>", "add_prefix_space": False},
        "modules.json": [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                         for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"),
                                                           ("2_Normalize", "Normalize")])],
        "1_Pooling/config.json": {"word_embedding_dimension": 40, "pooling_mode_cls_token": False,
                                  "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True,
                                  "include_prompt": True},
    }
    for name, value in files.items():
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_text(json.dumps(value, indent=1) + "\n")
    return model


def embedding(model, tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    with torch.no_grad():
        hidden = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
    vector = torch.nn.functional.normalize(hidden, dim=0)
    return {"text": text, "ids": ids, "vector": [round(value, 7) for value in vector.tolist()]}


def pair(model, tokenizer, query, document, instruction):
    plain = {"add_special_tokens": False}
    middle = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
    ids = [token for text in (PREFIX, middle, SUFFIX) for token in tokenizer(text, **plain)["input_ids"]]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    choice = torch.stack([logits[tokenizer.convert_tokens_to_ids(word)] for word in ("no", "yes")])
    score = torch.nn.functional.log_softmax(choice, dim=0)[1].exp().item()
    return {"query": query, "document": document, **({"instruction": instruction} if instruction else {}), "ids": ids,
            "score": round(score, 7)}


def main():
    model = write_folder(train_tokenizer())
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json"))
    golden = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
              "no": tokenizer.convert_tokens_to_ids("no"), "yes": tokenizer.convert_tokens_to_ids("yes"),
              "embeddings": [embedding(model, tokenizer, text) for text in TEXTS],
              "pairs": [pair(model, tokenizer, *one) for one in PAIRS]}
    (GOLDEN / "pooling.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    print([len(entry["ids"]) for entry in golden["embeddings"]], [entry["score"] for entry in golden["pairs"]])


main()
