"""Makes the seeds of the fuzz targets that start from no fixture. Needs pyarrow and numpy.

python fuzz/seeds/make.py
"""

import io
import json
import struct
import tarfile
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet

HERE = Path(__file__).parent


def write(target: str, name: str, content: bytes) -> None:
    (HERE / target).mkdir(exist_ok=True)
    (HERE / target / name).write_bytes(content)


def wav(samples: int) -> bytes:
    data = b"".join(struct.pack("<h", n * 77 % 3000) for n in range(samples))
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16)
    return head + struct.pack("<4sI", b"data", len(data)) + data


def npy(array: numpy.ndarray) -> bytes:
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


def tar(kind: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        for name, content in [
            ("a.wav", wav(50)),
            ("a.txt", b"one"),
            ("a.cls", b"7"),
            ("long/" * 25 + "b.json", b'{"text": "two"}'),
            ("caf\u00e9.npy", npy(numpy.ones(3, "f4"))),
        ]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("c.wav")
        link.type, link.linkname = tarfile.SYMTYPE, "a.wav"
        archive.addfile(link)
    return file.getvalue()


def parquet(compression: str, version: str) -> bytes:
    table = pyarrow.table(
        {
            "audio": [{"bytes": wav(20), "path": "a.wav"}, {"bytes": wav(30), "path": None}, None],
            "text": ["one", None, "three"],
            "label": [0, 1, None],
        }
    )
    file = io.BytesIO()
    pyarrow.parquet.write_table(
        table, file, compression=compression, data_page_version=version, row_group_size=2, store_schema=False
    )
    return file.getvalue()


def tokenizer(model: dict, pre: dict | None) -> bytes:
    whole = {"version": "1.0", "added_tokens": [{"id": 0, "content": "<s>", "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}], "normalizer": None, "pre_tokenizer": pre,
             "post_processor": None, "decoder": None, "truncation": None, "padding": None, "model": model}
    return json.dumps(whole).encode() + b"\0It's a text, with 12 words."


def byte_characters() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(rest))]


for name, array in {
    "f4": numpy.arange(6, dtype="<f4").reshape(3, 2),
    "f8_big": numpy.arange(6, dtype=">f8").reshape(3, 2),
    "i2_fortran": numpy.asfortranarray(numpy.arange(6, dtype="<i2").reshape(3, 2)),
    "bool": numpy.array([True, False]),
    "scalar": numpy.array(1.0, "f2"),
}.items():
    write("npy", name, npy(array))
write("tar", "gnu", tar(tarfile.GNU_FORMAT))
write("tar", "pax", tar(tarfile.PAX_FORMAT))
for compression in ["none", "snappy", "zstd", "gzip", "lz4"]:
    for version in ["1.0", "2.0"]:
        write("parquet", f"{compression}_{version}", parquet(compression, version))
write("jsonl", "text", '{"text": "one", "n": [1, {"a": null}]}\n{"text": "caf\u00e9 \\u00e9"}\n'.encode())
row = {"audio_filepath": "a.wav", "duration": 1.5, "offset": 0.5, "text": "a", "label": "x"}
row["words"] = [{"word": "a", "start": 0, "end": 1}]
write("jsonl", "manifest", (json.dumps(row) + "\n" + json.dumps({**row, "label": 1}) + "\n").encode())
write("csv", "commas", b'\xef\xbb\xbffile_name,text,duration,label\r\n"a.wav","one, ""two""\nthree",1.5,x\n\nb.wav,b,,y\n')
write("csv", "tabs", b"path\tsentence\na.mp3\tshe said \"no\nb.mp3\tb\n")
write("csv", "paths", b"a.wav\nfolder/b.flac\n")
alphabet = {character: number + 1 for number, character in enumerate(byte_characters())}
bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
       "fuse_unk": False, "byte_fallback": False, "vocab": {**alphabet, "it": 300, "th": 301}, "merges": ["i t", "t h"]}
write("tokenizer", "bpe", tokenizer(bpe, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                          "use_regex": True}))
word = {"type": "WordLevel", "vocab": {"<s>": 0, "a": 1}, "unk_token": "<s>"}
write("tokenizer", "words", tokenizer(word, {"type": "Whitespace"}))
