from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from pipesim.errors import FormatError
from pipesim.files import read_text, write_bytes, write_text


def message(error: pytest.ExceptionInfo[FormatError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_written_text_is_read_back_with_its_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "é\r\nb\n")
    assert path.read_bytes() == "é\r\nb\n".encode()
    assert read_text(path) == "é\r\nb\n"
    assert os.listdir(tmp_path) == ["a.txt"]  # noqa: PTH208


def test_a_byte_order_mark_is_not_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa")
    assert read_text(tmp_path / "a") == "a"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, make, expected: str) -> None:
    make(tmp_path / "a")
    with pytest.raises(FormatError) as error:
        read_text(tmp_path / "a")
    assert message(error) == f"{tmp_path / 'a'}: {expected}"


def test_bytes_that_are_not_utf8_are_placed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("aé\nbé\xff".encode()[:-2] + b"\xff")
    with pytest.raises(FormatError, match=r"a:2:3: is not text in UTF-8"):
        read_text(tmp_path / "a")


def test_a_log_may_have_a_few_damaged_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\xffb\n" + 200 * b"c")
    assert read_text(path, damaged=True) == "a\ufffdb\n" + 200 * "c"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(FormatError, match=r"a:2:\d+: is not text in UTF-8$"):
        read_text(path, damaged=True)


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gzip.compress(b"iteration"), "packed by gzip: unpack"),
        ("iteration".encode("utf-16"), "in UTF-16: convert"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes, what: str, damaged: bool) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(FormatError, match=f"a: is not text in UTF-8, but {what}"):
        read_text(tmp_path / "a", damaged=damaged)


def test_an_impossible_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        read_text("a\0b")
    with pytest.raises(FormatError, match="cannot be written"):
        write_text("a\0b", "")
    with pytest.raises(FormatError, match="a lone surrogate"):
        write_text(tmp_path / "a", "\ud800")
    with pytest.raises(FormatError, match="cannot be written: File name too long"):
        write_text(tmp_path / ("a" * 300), "")


def test_what_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FormatError) as error:
        write_text(tmp_path / "no" / "a", "text")
    assert message(error).endswith(f"cannot be written: there is no folder {tmp_path / 'no'}")
    with pytest.raises(FormatError) as error:
        write_text(tmp_path, "text")
    assert message(error) == f"{tmp_path}: cannot be written: it is a folder"
    assert not list(tmp_path.iterdir())


def test_a_failing_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FormatError, match="cannot be written: No space left on device"):
        write_text(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert path.read_text() == "old"


def test_permissions_and_links_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    write_text(path, "old")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_bytes(pipe, b"content")
    reader.join()
    assert got == [b"content"]
    assert pipe.is_fifo()
