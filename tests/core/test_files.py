"""Files are read without blocking, replaced atomically, and checked for owner and permissions."""

import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ductile.core import files
from ductile.core.files import FileFinding, FileMissing, FileRefused, Level

OTHER_UID = 54321


def refusals(findings: list[FileFinding]) -> list[Path]:
    return [finding.path for finding in findings if finding.level is Level.REFUSED]


def warned(findings: list[FileFinding]) -> list[Path]:
    return [finding.path for finding in findings if finding.level is Level.WARNING]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder without findings."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    return private


def make(path: Path, content: bytes = b"content", mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


# Reading


def test_a_regular_file_is_read_with_its_mode_owner_and_real_path(folder: Path) -> None:
    """The metadata is that of the opened file."""
    path = make(folder / "a", b"hello", 0o640)

    read = files.read_regular(path, max_bytes=5)

    assert (read.content, read.mode, read.uid, read.path) == (b"hello", 0o640, os.geteuid(), path)
    assert read.resolved == Path(os.path.realpath(path))


def test_a_file_of_the_maximum_size_is_read_and_a_larger_one_refused(folder: Path) -> None:
    assert files.read_regular(make(folder / "a", b"x" * 1000), max_bytes=1000).content == b"x" * 1000
    with pytest.raises(FileRefused, match="larger than the 1000 bytes"):
        files.read_regular(make(folder / "b", b"x" * 1001), max_bytes=1000)


def test_reading_stops_at_the_maximum_size(folder: Path) -> None:
    """The reported size is not trusted: files in /proc report zero."""
    endless = Path("/proc/self/environ") if os.path.exists("/proc/self/environ") else make(folder / "a", b"x" * 9)
    with pytest.raises(FileRefused, match="larger than the 4 bytes"):
        files.read_regular(endless, max_bytes=4)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.mkdir()


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make_it", "reason"),
    [
        (_fifo, "is a FIFO"),
        (_directory, "is a directory"),
        (_socket, "is a socket"),
        (_dangling_link, "is a symlink"),
        (_link_to_itself, "is a symlink"),
    ],
)
def test_only_regular_files_are_read(tmp_path: Path, make_it: Callable[[Path], None], reason: str) -> None:
    """A FIFO without a writer, a device or a socket never blocks the reader."""
    make_it(tmp_path / "x")
    with pytest.raises(FileRefused, match=reason) as refused:
        files.read_regular(tmp_path / "x", max_bytes=100)
    assert refused.value.exit_code == 78
    assert refused.value.context == {"file": str(tmp_path / "x")}


def test_a_symlink_to_a_fifo_is_refused_even_if_symlinks_are_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    with pytest.raises(FileRefused, match="is a FIFO"):
        files.read_regular(tmp_path / "link", max_bytes=100, follow_symlinks=True)


def test_a_device_is_refused() -> None:
    """Devices are not opened: opening one can have side effects."""
    with pytest.raises(FileRefused, match="is a device"):
        files.read_regular(Path("/dev/zero"), max_bytes=100)


def test_a_symlink_is_followed_only_on_request(folder: Path) -> None:
    """`resolved` is the path of the opened file."""
    target = make(folder / "target", b"t")
    link = folder / "link"
    link.symlink_to(target)

    with pytest.raises(FileRefused, match="is a symlink"):
        files.read_regular(link, max_bytes=100)
    read = files.read_regular(link, max_bytes=100, follow_symlinks=True)

    assert (read.path, read.resolved, read.content) == (link, Path(os.path.realpath(target)), b"t")


def test_a_missing_file_has_its_own_error(tmp_path: Path) -> None:
    """Callers distinguish "missing" from "refused" by type."""
    with pytest.raises(FileMissing, match="does not exist") as missing:
        files.read_regular(tmp_path / "no", max_bytes=1)
    assert missing.value.code == "file_missing"


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "file/below"])
def test_an_invalid_path_is_refused(folder: Path, name: str) -> None:
    """NUL bytes, names that are too long, and files used as folders."""
    make(folder / "file")
    with pytest.raises(FileRefused):
        files.read_regular(folder / name, max_bytes=1)
    with pytest.raises(FileRefused):
        files.write_private(folder / name, b"")


def test_a_file_that_grows_while_it_is_read_is_refused(folder: Path) -> None:
    """The content would mix two versions."""
    path = make(folder / "a", b"x" * 10)
    with files.open_regular(path) as opened:
        path.write_bytes(b"x" * 11)
        with pytest.raises(FileRefused, match="changed while it was read"):
            list(opened.chunks())


def test_descriptors_are_closed_after_success_and_refusal(folder: Path) -> None:
    path = make(folder / "a", b"x" * 10)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(FileRefused):
            files.read_regular(path, max_bytes=1)
        files.read_regular(path, max_bytes=10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_swapped_for_a_symlink_is_never_read_through(folder: Path) -> None:
    good, secret = make(folder / "good", b"good"), make(folder / "secret", b"secret")
    path = folder / "config"
    stop = threading.Event()

    def flip() -> None:
        names = [folder / "flip-a", folder / "flip-b"]
        while not stop.is_set():
            os.link(good, names[0])
            os.rename(names[0], path)
            os.symlink(secret, names[1])
            os.rename(names[1], path)
            # A rename onto another link to the same file keeps the old name.
            names[0].unlink(missing_ok=True)

    os.link(good, path)
    flipping = threading.Thread(target=flip)
    flipping.start()
    contents: set[bytes] = set()
    refused = 0
    try:
        while not contents or refused < 200:
            try:
                contents.add(files.read_regular(path, max_bytes=100).content)
            except FileRefused:
                refused += 1
    finally:
        stop.set()
        flipping.join()

    assert contents == {b"good"}


def test_the_real_path_is_correct_while_a_parent_symlink_changes(tmp_path: Path) -> None:
    """A symlink in a parent folder is not refused on opening, so `resolved` must match the bytes."""
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
        make(tmp_path / name / "file", name.encode())
    (tmp_path / "link-in").symlink_to("inside")
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            for name in ("outside", "inside"):
                os.symlink(name, tmp_path / "new")
                os.rename(tmp_path / "new", tmp_path / "link-in")

    flipping = threading.Thread(target=flip)
    flipping.start()
    seen: set[tuple[bytes, str]] = set()
    try:
        while len({content for content, _ in seen}) < 2:
            read = files.read_regular(tmp_path / "link-in" / "file", max_bytes=100)
            seen.add((read.content, read.resolved.parent.name))
    finally:
        stop.set()
        flipping.join()

    assert seen == {(b"inside", "inside"), (b"outside", "outside")}


# Writing


def test_a_written_file_has_the_given_content_and_mode(folder: Path) -> None:
    """Regardless of the umask."""
    before = os.umask(0)
    try:
        files.write_private(folder / "a", b"secret")
        os.umask(0o077)
        files.write_private(folder / "b", b"open", mode=0o644)
    finally:
        os.umask(before)
    assert ((folder / "a").read_bytes(), (folder / "a").stat().st_mode & 0o777) == (b"secret", 0o600)
    assert ((folder / "b").read_bytes(), (folder / "b").stat().st_mode & 0o777) == (b"open", 0o644)


def test_replacing_a_file_is_atomic_for_readers(folder: Path) -> None:
    """A reader with the old file open still reads the old content. No temporary file remains."""
    path = make(folder / "a", b"old")
    with path.open("rb") as reader:
        files.write_private(path, b"new")
        assert (reader.read(), path.read_bytes()) == (b"old", b"new")
    assert os.listdir(folder) == ["a"]


def test_a_replaced_file_keeps_its_owner(folder: Path) -> None:
    """Root may edit the configuration of a service that runs as another user."""
    path = make(folder / "a", b"old")
    if os.geteuid() == 0:
        os.chown(path, OTHER_UID, OTHER_UID)
    owner = (path.stat().st_uid, path.stat().st_gid)
    files.write_private(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == owner


def test_a_failed_write_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old content stays and no temporary file remains."""
    path = make(folder / "a", b"old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    for call in ("write", "fsync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(FileRefused, match="no space left"):
                files.write_private(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(folder) == ["a"]


def test_a_symlink_is_written_through_only_on_request(folder: Path) -> None:
    target, link = make(folder / "target", b"old"), folder / "link"
    link.symlink_to("target")
    with pytest.raises(FileRefused, match="is a symlink"):
        files.write_private(link, b"new")
    files.write_private(link, b"new", follow_symlinks=True)
    assert (link.is_symlink(), target.read_bytes()) == (True, b"new")


def test_writing_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileMissing):
        files.write_private(tmp_path / "no" / "a", b"")


# Symlinks


def test_all_symlinks_in_a_path_are_found_outermost_first(folder: Path) -> None:
    (folder / "real" / "inner").mkdir(parents=True)
    make(folder / "real" / "inner" / "file")
    (folder / "one").symlink_to("real")
    (folder / "real" / "two").symlink_to("inner")
    (folder / "real" / "inner" / "three").symlink_to("file")

    path = folder / "one" / "two" / "three"
    assert [link for link in files.find_symlinks(path) if link.is_relative_to(folder)] == [
        folder / "one",
        folder / "one" / "two",
        path,
    ]
    assert files.find_symlinks(Path(os.path.realpath(folder)) / "real" / "inner" / "file") == []


def test_the_search_for_symlinks_stops_at_a_missing_component(folder: Path) -> None:
    assert files.find_symlinks(Path(os.path.realpath(folder)) / "no" / "such" / "file") == []


def test_symlinks_are_refused_or_if_allowed_reported(folder: Path) -> None:
    (folder / "link").symlink_to("somewhere")
    refused = files.check_symlinks(folder / "link", allow=False)
    allowed = files.check_symlinks(folder / "link", allow=True)
    assert refusals(refused) == [folder / "link"]
    assert "allow_symlinks" in refused[-1].message
    assert refusals(allowed) == []
    assert warned(allowed)[-1] == folder / "link"


def test_a_symlink_directly_below_the_root_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/home` or `/tmp` is a symlink on some systems."""
    monkeypatch.setattr(files, "find_symlinks", lambda _: [Path("/home")])
    monkeypatch.setattr(files, "read_link", lambda _: "var/home")
    assert [finding.level for finding in files.check_symlinks(Path("/home/a"), allow=False)] == [Level.WARNING]


# Permissions


@pytest.mark.parametrize(
    ("mode", "private", "level"),
    [
        (0o600, True, None),
        (0o400, True, None),
        (0o640, True, Level.WARNING),
        (0o604, True, Level.WARNING),
        (0o601, True, Level.WARNING),
        (0o644, True, Level.WARNING),
        (0o602, True, Level.REFUSED),
        (0o606, True, Level.REFUSED),
        (0o666, True, Level.REFUSED),
        (0o777, True, Level.REFUSED),
        (0o600, False, None),
        (0o644, False, None),
        (0o755, False, None),
        (0o640, False, None),
        (0o602, False, Level.REFUSED),
        (0o646, False, Level.REFUSED),
        (0o666, False, Level.REFUSED),
        (0o757, False, Level.REFUSED),
    ],
)
def test_the_mode_of_a_file_decides_its_finding(folder: Path, mode: int, private: bool, level: Level | None) -> None:
    """World-writable files are refused. Read access matters only for private files."""
    path = make(folder / "a", mode=mode)
    findings = files.check_permissions(path, private=private)
    assert [finding.level for finding in findings] == ([level] if level else [])
    assert all(f"{mode:04o}" in finding.message and "chmod" in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("mode", "private", "level"),
    [
        (0o700, True, None),
        (0o500, True, None),
        (0o750, True, Level.WARNING),
        (0o755, True, Level.WARNING),
        (0o711, True, Level.WARNING),
        (0o702, True, Level.REFUSED),
        (0o777, True, Level.REFUSED),
        (0o1777, True, Level.REFUSED),
        (0o755, False, None),
        (0o1777, False, Level.REFUSED),
        (0o777, False, Level.REFUSED),
    ],
)
def test_the_mode_of_a_folder_decides_its_finding(folder: Path, mode: int, private: bool, level: Level | None) -> None:
    """The sticky bit does not help for a folder with files in use: other users could add files."""
    folder.chmod(mode)
    try:
        findings = files.check_permissions(folder, private=private)
    finally:
        folder.chmod(0o700)
    assert [finding.level for finding in findings] == ([level] if level else [])


@pytest.mark.parametrize(
    ("mode", "level"),
    [
        (0o700, None),
        (0o755, None),
        (0o711, None),
        (0o1777, None),
        (0o1757, None),
        (0o777, Level.REFUSED),
        (0o757, Level.REFUSED),
        (0o703, Level.REFUSED),
    ],
)
def test_a_parent_folder_must_not_let_other_users_replace_its_entries(
    folder: Path, mode: int, level: Level | None
) -> None:
    """For a parent folder the sticky bit is sufficient."""
    path = folder / "way" / "inner" / "file"
    path.parent.mkdir(parents=True, mode=0o700)
    make(path)
    way = folder / "way"
    way.chmod(mode)
    findings = [finding for finding in files.check_path(path) if finding.path.is_relative_to(folder)]
    assert [(finding.level, finding.path) for finding in findings] == ([(level, way)] if level else [])


def shared_group() -> int:
    """Return a group of this user that is not private to it; any group for root."""
    if os.geteuid() == 0:
        return OTHER_UID
    return next((gid for gid in os.getgroups() if gid not in (0, os.getegid())), os.getegid())


def test_group_writable_is_a_warning_if_the_group_is_shared(folder: Path) -> None:
    path = make(folder / "a")
    os.chown(path, -1, shared_group())
    path.chmod(0o660)
    expected = [path] if files._is_shared(path.stat().st_gid) else []
    assert warned(files.check_permissions(path)) == expected
    assert refusals(files.check_permissions(path)) == []
    assert os.geteuid() != 0 or expected == [path]


def test_a_group_writable_parent_folder_is_a_warning_unless_sticky(folder: Path) -> None:
    os.chown(folder, -1, shared_group())
    folder.chmod(0o770)
    expected = [folder] if files._is_shared(folder.stat().st_gid) else []
    assert warned(files.check_parent_folder(folder)) == expected
    folder.chmod(0o1770)
    assert files.check_parent_folder(folder) == []


def test_the_group_of_root_is_not_shared(folder: Path) -> None:
    assert files._is_shared(0) is False


def test_a_file_of_another_user_is_refused_and_a_parent_folder_is_a_warning(folder: Path) -> None:
    """The owner can change the mode at any time."""
    path = make(folder / "a")
    if os.geteuid() == 0:
        os.chown(path, OTHER_UID, -1)
        os.chown(folder, OTHER_UID, -1)
        assert refusals(files.check_permissions(path)) == [path]
        assert "uid 54321" in files.check_permissions(path)[0].message
        assert (refusals(files.check_parent_folder(folder)), warned(files.check_parent_folder(folder))) == (
            [],
            [folder],
        )
    else:
        assert files.check_permissions(path) == []
        assert refusals(files.check_permissions(Path("/"))) == []


def test_the_parents_of_the_resolved_path_are_checked_too(folder: Path) -> None:
    """A symlink from a safe folder into an unsafe one does not make the file safe."""
    (folder / "open" / "inner").mkdir(parents=True)
    make(folder / "open" / "inner" / "file")
    (folder / "open").chmod(0o777)
    (folder / "link").symlink_to("open/inner/file")
    assert refusals(files.check_path(folder / "link")) == [Path(os.path.realpath(folder / "open"))]


def test_checking_a_missing_file_raises(folder: Path) -> None:
    with pytest.raises(FileMissing):
        files.check_path(folder / "no")


def test_unprintable_names_are_escaped_in_messages(folder: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(folder) + b"/a\xff\n\x1b[31m"))
    make(path, mode=0o666)
    text = str(files.check_permissions(path)[0])
    text.encode()
    assert text.startswith(f"{folder}/a\\xff\\x0a\\x1b[31m: file is world-writable")
    with pytest.raises(FileRefused) as refused:
        files.read_regular(path, max_bytes=1)
    str(refused.value).encode()
    assert "\n" not in str(refused.value)


def test_entries_are_sorted_and_a_file_is_not_a_folder(folder: Path) -> None:
    for name in ("b", "a", "c"):
        make(folder / name)
    assert [entry.name for entry in files.list_entries(folder)] == ["a", "b", "c"]
    with pytest.raises(FileRefused, match="not a directory"):
        files.list_entries(folder / "a")


def test_the_file_system_of_the_tests_supports_modes(folder: Path) -> None:
    """Otherwise every permission test would pass."""
    assert stat.S_IMODE(make(folder / "a", mode=0o666).stat().st_mode) == 0o666
