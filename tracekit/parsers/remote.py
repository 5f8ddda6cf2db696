"""Traces behind a URL, read through fsspec (the extra ``remote``) and copied by the worker that reads them."""

import contextlib
import ipaddress
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracekit.errors import InputError

_FOLDER_SUFFIXES = (".parquetdir", ".arrowdir")
_IN_EXPORTED_FOLDER = re.compile(r"^(.*?\.(?:parquetdir|arrowdir))/.*$")


def list_files(url: str, *, depth: int) -> dict[str, int]:
    """Return the bytes of each file, or exported folder, at *url*, a file, pattern or folder, by its own URL."""
    with _one_line_errors(url):
        system, path = _file_system(url)
        if any(sign in path for sign in "*?["):
            listed = system.glob(path, detail=True)
        elif path.endswith(_FOLDER_SUFFIXES) or (not url.startswith("http") and system.isdir(path)):
            listed = system.find(path, maxdepth=depth, detail=True)
        else:
            info = system.info(path)
            return {url: int(info.get("size") or 0)}
        sizes: dict[str, int] = {}
        for name, info in sorted(listed.items()):
            source = _IN_EXPORTED_FOLDER.sub(r"\1", name)  # the files of an exported folder are one source
            sizes[source] = sizes.get(source, 0) + int(info.get("size") or 0)
        if not sizes:
            raise InputError(f"{url}: holds nothing", hint="check the URL")
        return {system.unstrip_protocol(name): size for name, size in sizes.items()}


def change_stamp(url: str) -> str:
    """Return text that changes when the file at *url* does: its size, and the server's checksums and times."""
    with _one_line_errors(url):
        system, path = _file_system(url)
        info = system.info(path)
    return repr(sorted((key, str(info[key])) for key in _CHANGE_KEYS if info.get(key) is not None))


_CHANGE_KEYS = ("size", "etag", "ETag", "mtime", "LastModified", "last_modified", "updated", "md5Hash", "crc32c",
             "blob_id", "Content-MD5", "Digest")  # fmt: skip


def read_head(url: str, count: int) -> bytes:
    """Return the first *count* bytes of the file at *url*."""
    with _one_line_errors(url):
        system, path = _file_system(url)
        with system.open(path, "rb") as file:
            return bytes(file.read(count))


@contextlib.contextmanager
def fetch_to_local(path: str) -> Iterator[str]:
    """Yield *path* if it is local, else a local copy, removed at the end of the context.

    >>> with fetch_to_local("here.json") as local:
    ...     local
    'here.json'
    """
    if "://" not in path:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        with _one_line_errors(path):
            system, remote_path = _file_system(path)
            local = Path(folder) / remote_path.rstrip("/").rsplit("/", 1)[-1]
            system.get(remote_path, str(local), recursive=remote_path.endswith(_FOLDER_SUFFIXES))
        yield str(local)


def _file_system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        hint = "pip install 'tracekit-ml[remote]', or copy the files here"
        raise InputError(f"{url}: reading URLs needs fsspec", hint=hint) from None
    options = {"get_client": _http_client} if url.startswith(("http://", "https://")) else {}
    system, path = url_to_fs(url, **options)
    return system, str(path)


async def _http_client(**options: Any) -> Any:
    """Return fsspec's HTTP client, with a check of every redirect before it is followed."""
    import aiohttp

    redirects = aiohttp.TraceConfig()
    redirects.on_request_redirect.append(_check_redirect)
    return aiohttp.ClientSession(trace_configs=[redirects], **options)


async def _check_redirect(session: Any, context: Any, redirect: Any) -> None:
    """Refuse a redirect from a public to a private address; say on stderr if one leads to another host."""
    source = redirect.url
    target = source.join(type(source)(redirect.response.headers.get("Location", "")))
    if target.host in (None, source.host):
        return
    if _is_private(target.host) and not _is_private(source.host):
        raise InputError(f"{source}: redirects to the private address {target.host}", hint="name that URL yourself")
    sys.stderr.write(f"tracekit: {source.host} redirects to {target.host}\n")


def _is_private(host: str) -> bool:
    """Return whether a host name or address leads to this machine or a private network; unknown names do not."""
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return any(not ipaddress.ip_address(str(address).partition("%")[0]).is_global for address in addresses)


@contextlib.contextmanager
def _one_line_errors(url: str) -> Iterator[None]:
    """Turn whatever a remote file system raises into one line about the URL."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{url}: there is no such file or folder", hint="check the URL") from None
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{url}: {reason}", hint="install that package, or copy the files here") from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{url}: cannot be read: {reason}", hint="check the URL and your access to it") from error
