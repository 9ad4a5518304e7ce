"""The GGUF container reader: same content as the gguf package, and no trust in lengths."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest

from xllm.core.utils.gguf import read_header


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_uint32("llama.block_count", 7)
    writer.add_float32("llama.rope.freq_base", 1e5)
    writer.add_bool("flag", True)
    writer.add_array("tokens", ["a", "é", "", "日本"])
    writer.add_array("scores", [0.5, -1.5])
    writer.add_array("types", [1, 3])
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.ones(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_metadata_and_tensors_are_read(path):
    header = read_header(path)
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.block_count"] == 7
    assert header.metadata["llama.rope.freq_base"] == 1e5
    assert header.metadata["flag"] is True
    assert header.metadata["tokens"] == ["a", "é", "", "日本"]
    assert header.metadata["scores"].tolist() == [0.5, -1.5]
    assert header.metadata["types"].tolist() == [1, 3]
    first = header.tensors["first"]
    assert (first.shape, first.type_id) == ((2, 3), gguf.GGMLQuantizationType.F32)
    stored = np.fromfile(path, np.float32, count=6, offset=first.offset)
    assert stored.tolist() == [0, 1, 2, 3, 4, 5]


def test_every_truncation_is_an_error(path, tmp_path):
    whole = path.read_bytes()
    end_of_header = min(t.offset for t in read_header(path).tensors.values())
    cut = tmp_path / "cut.gguf"
    for length in range(end_of_header - 32):
        cut.write_bytes(whole[:length])
        with pytest.raises(ValueError):
            read_header(cut)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGML" + bytes(40), "wrong magic"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "do not fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "do not fit"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(8), "beyond the end"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99) + bytes(8), "type 99 is unknown"),
    ],
)
def test_hostile_headers_are_refused(tmp_path, data, message):
    file = tmp_path / "bad.gguf"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_header(file)


def test_deeply_nested_arrays_are_refused(tmp_path):
    nested = struct.pack("<IQ", 9, 1) * 50 + struct.pack("<IQ", 0, 0)
    file = tmp_path / "bad.gguf"
    head = struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 9)
    file.write_bytes(b"GGUF" + head + nested)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_header(file)
