"""Traces behind a URL, read through fsspec (the extra ``remote``) and copied by the worker that reads them."""

import contextlib
import errno
import ipaddress
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tracekit._version import requirement
from tracekit.errors import InputError

_FOLDER_SUFFIXES = (".parquetdir", ".arrowdir")
_USER_IN_URL = re.compile(r"(?<=://)[^/@]*@")
_URL_IN_TEXT = re.compile(r"\w+://[^\s'\"<>]+")
MAX_REASON_CHARS = 200
"""Length at which the text of a foreign error is cut."""
_IN_EXPORTED_FOLDER = re.compile(r"^(.*?\.(?:parquetdir|arrowdir))/.*$")


ANSWER_TIMEOUT_S = 60.0
"""Seconds that a web server may stay silent, when it is asked or in the middle of a file; a file
may take any time."""
MAX_LISTING_BYTES = 8 << 20
"""Most bytes of a web server's page that lists files; about a hundred thousand names."""
LISTING_CHUNK_BYTES = 1 << 16
MAX_FILES_IN_EXPORTED_FOLDER = 1000
"""Most files of an exported Nsight report: it has about 150 tables."""
CONNECT_TIMEOUT_S = 30.0
"""Seconds within which a web server must accept a connection."""


def public_url(url: str) -> str:
    """Return a URL as it may be shown and stored: without user and password, and without the query of a web address.

    >>> public_url("https://me:secret@host/run/rank0.json?token=secret#x")
    'https://host/run/rank0.json'
    >>> public_url("s3://bucket/rank?.json"), public_url("runs/a@b?.json")
    ('s3://bucket/rank?.json', 'runs/a@b?.json')
    """
    without_user = _USER_IN_URL.sub("", url)
    return re.split(r"[?#]", without_user, maxsplit=1)[0] if _is_web(url) else without_user


def _is_web(url: str) -> bool:
    """Return whether a URL is read by HTTP, where ``?`` begins a query and is not part of a pattern."""
    return url.startswith(("http://", "https://"))


def list_files(url: str, *, depth: int) -> dict[str, int]:
    """Return the bytes of each file, or exported folder, at *url*, a file, pattern or folder, by its own URL."""
    with errors_on_one_line(url):
        system, path = open_file_system(url)
        if any(sign in _without_query(path) for sign in "*?["):
            listed = system.glob(path, detail=True, maxdepth=depth)
        elif path.endswith(_FOLDER_SUFFIXES) or (not _is_web(url) and system.isdir(path)):
            listed = system.find(path, maxdepth=depth, detail=True)
        else:
            info = system.info(path)
            return {url: int(info.get("size") or 0)}
        sizes: dict[str, int] = {}
        for name, info in sorted(listed.items()):
            # The files of an exported folder are one source.
            source = _IN_EXPORTED_FOLDER.sub(r"\1", name)
            sizes[source] = sizes.get(source, 0) + int(info.get("size") or 0)
        if not sizes:
            raise InputError("holds nothing", path=url, hint="check the URL")
        return {system.unstrip_protocol(name): size for name, size in sizes.items()}


def _without_query(path: str) -> str:
    """Return the path of a file system's file, of a web address without its query."""
    return public_url(path) if _is_web(path) else path


def change_stamp(url: str) -> str:
    """Return text that changes when the file at *url* does: its size, and the server's checksums and times."""
    with errors_on_one_line(url):
        system, path = open_file_system(url)
        info = system.info(path)
    return repr(sorted((key, str(info[key])) for key in _CHANGE_KEYS if info.get(key) is not None))


_CHANGE_KEYS = (
    "size",
    "etag",
    "ETag",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "md5Hash",
    "crc32c",
    "blob_id",
    "Content-MD5",
    "Digest",
)


def read_head(url: str, count: int) -> bytes:
    """Return the first *count* bytes of the file at *url*."""
    with errors_on_one_line(url):
        system, path = open_file_system(url)
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
        with errors_on_one_line(path):
            system, remote_path = open_file_system(path)
            name = _without_query(remote_path).rstrip("/").rsplit("/", 1)[-1]
            local = _path_inside(Path(folder), name, path)
            if remote_path.endswith(_FOLDER_SUFFIXES):
                _fetch_folder(system, remote_path, local)
            else:
                # Get would take the ? of a query for a pattern.
                system.get_file(remote_path, str(local))
        yield str(local)


def _fetch_folder(system: Any, remote_path: str, local: Path) -> None:
    """Copy the files that lie directly in a remote folder, an exported report, into the new folder *local*.

    What a server lists is its own choice, and libraries join it to the target: the names are checked here, one by one.
    """
    local.mkdir()
    listed = system.find(remote_path, maxdepth=1)
    if len(listed) > MAX_FILES_IN_EXPORTED_FOLDER:
        problem = f"{public_url(remote_path)}: lists {len(listed):,} files"
        hint = f"an exported report has a file per table, at most {MAX_FILES_IN_EXPORTED_FOLDER:,}"
        raise InputError(problem, hint=hint)
    if list(listed) == [remote_path]:  # what fsspec says of a page without links
        raise InputError("lists no files", path=public_url(remote_path), hint="check the URL")
    prefix = remote_path.rstrip("/") + "/"
    for file in listed:
        if not file.startswith(prefix):
            raise _outside_error(remote_path, file)
        name = _without_query(file.removeprefix(prefix))
        system.get_file(file, str(_path_inside(local, name, remote_path)))


def _path_inside(folder: Path, name: str, url: str) -> Path:
    """Return the path of a file in *folder*; raise unless *name* is the plain name of one.

    >>> _path_inside(Path("copy"), "StringIds.parquet", "http://host/x.parquetdir").as_posix()
    'copy/StringIds.parquet'
    >>> _path_inside(Path("copy"), "../evil.parquet", "http://host/x.parquetdir")
    Traceback (most recent call last):
    tracekit.errors.InputError: http://host/x.parquetdir: lists ../evil.parquet, which is not ...
    """
    is_plain = name not in ("", ".", "..") and not any(sign in name for sign in "/\\:\0")
    path = folder / name if is_plain else folder
    # The check that counts, whatever a name means on this system.
    if not is_plain or path.resolve().parent != folder.resolve():
        raise _outside_error(url, name)
    return path


def _outside_error(url: str, name: str) -> InputError:
    """Return the error about a server that lists a file outside of the folder at *url*."""
    listed = " ".join(public_url(name)[:MAX_REASON_CHARS].split())
    problem = (
        f"{public_url(url)}: lists {listed or 'an empty name'}, which is not a file in that folder"
    )
    return InputError(
        problem, hint="the listing is damaged or hostile; copy the files here yourself"
    )


def open_file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        hint = f"pip install '{requirement('remote')}', or copy the files here"
        raise InputError("reading URLs needs fsspec", path=public_url(url), hint=hint) from None
    options = {"get_client": _http_client} if _is_web(url) else {}
    system, path = url_to_fs(url, **options)
    return system, str(path)


async def _http_client(**options: Any) -> Any:
    """Return fsspec's HTTP client, with a check of every redirect before it is followed, and with time-outs."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=ANSWER_TIMEOUT_S
    )

    public_hosts: set[str] = set()

    async def check_redirect(session: Any, context: Any, redirect: Any) -> None:
        await check_redirect_target(session, context, redirect, public_hosts=public_hosts)

    redirects = aiohttp.TraceConfig()
    redirects.on_request_redirect.append(check_redirect)

    class Response(aiohttp.ClientResponse):
        """An answer whose text, which fsspec asks for to list a folder, is of a bounded size."""

        async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
            """Return the links of the page, and nothing else."""
            data = bytearray()
            async for chunk in self.content.iter_chunked(LISTING_CHUNK_BYTES):
                data += chunk
                if len(data) > MAX_LISTING_BYTES:
                    shown = public_url(str(self.url))
                    limit = f"{MAX_LISTING_BYTES >> 20} MB"
                    problem = f"its list of files has more than {limit}"
                    raise InputError(problem, path=shown, hint="name the files one by one")
            return keep_links(data.decode("utf-8", "replace"))

    return aiohttp.ClientSession(
        **{"timeout": timeout, **options},
        connector=aiohttp.TCPConnector(resolver=public_resolver(public_hosts)),
        trace_configs=[redirects],
        # Bytes are stored as they come: a server cannot make a thousand of each.
        auto_decompress=False,
        headers={"Accept-Encoding": "identity"},
        response_class=Response,
    )


def public_resolver(public_hosts: set[str]) -> Any:
    """Return a resolver of host names that gives no private address of one that had a public one.

    Whoever has a domain can give its name another address at every question (DNS rebinding).

    Args:
        public_hosts: Names that lead to a public address; those that are resolved are added.
    """
    import aiohttp

    class Resolver(aiohttp.ThreadedResolver):
        """The resolver of the system, which remembers the names that were public."""

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[Any]:
            """Return the addresses of *host*."""
            addresses: list[Any] = await super().resolve(host, port, family)
            if not any(_is_private_address(address["host"]) for address in addresses):
                public_hosts.add(host)
            elif host in public_hosts:
                problem = "led to a public address, and leads to a private one now"
                raise InputError(problem, path=host, hint="name that address yourself")
            return addresses

    return Resolver()


def keep_links(page: str) -> str:
    """Return a page of HTML with nothing but the links of *page*.

    fsspec's own pattern for links takes quadratic time on a page with many tags that do not end.

    >>> keep_links('<a class=x href="rank0.json">0</a> <a <a <A HREF="b/">').split()
    ['<a', 'href="rank0.json">', '<a', 'href="b/">']
    """
    links = re.findall(r"""\bhref=["']([^"'<>]{1,4096})["']""", page, re.IGNORECASE)
    return "\n".join(f'<a href="{link}">' for link in links)


async def check_redirect_target(
    session: Any, context: Any, redirect: Any, *, public_hosts: set[str]
) -> None:
    """Refuse a redirect from a public to a private address.

    Say on stderr if one leads to another host.

    Args:
        session: The client.
        context: Its own data.
        redirect: The request that was answered, and the answer.
        public_hosts: Names that led to a public address, whatever they lead to now; the target is
            added if it is judged as one.
    """
    source = redirect.url
    target = source.join(type(source)(redirect.response.headers.get("Location", "")))
    if target.host in (None, source.host):
        return
    is_from_public = source.host in public_hosts or not _is_private(source.host)
    if is_from_public and not _is_private(target.host):
        public_hosts.add(target.host)
    elif is_from_public:
        problem = f"{public_url(str(source))}: redirects to the private address {target.host}"
        raise InputError(problem, hint="name that URL yourself")
    sys.stderr.write(f"tracekit: {source.host} redirects to {target.host}\n")


def _is_private(host: str) -> bool:
    """Return whether a host name or address leads to this machine or a private network.

    Unknown names do not.
    """
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return any(_is_private_address(str(address)) for address in addresses)


def _is_private_address(address: str) -> bool:
    """Return whether an address is one of this machine or of a private network.

    >>> _is_private_address("127.0.0.1"), _is_private_address("fe80::1%eth0"), _is_private_address("8.8.8.8")
    (True, True, False)
    """
    return not ipaddress.ip_address(address.partition("%")[0]).is_global


_PACKAGE_OF_SCHEME = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "hf": "huggingface_hub",
    "http": "",  # the extra brings what it needs
    "https": "",
}
"""Package with which fsspec reads URLs of a scheme."""


@contextlib.contextmanager
def errors_on_one_line(url: str) -> Iterator[None]:
    """Turn whatever a remote file system raises into one line about the URL, without its secrets."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # fsspec says of whatever fails at a web server that there is no file, with the true reason
        # as the cause.
        raise _input_error(url, error.__cause__ or error) from error


def _input_error(url: str, error: BaseException) -> InputError:
    """Return the error about a URL that cannot be read because of *error*."""
    shown = public_url(url)
    is_gone = (
        isinstance(error, FileNotFoundError)
        or getattr(error, "status", None) == HTTPStatus.NOT_FOUND
    )
    if is_gone:
        return InputError("there is no such file or folder", path=shown, hint="check the URL")
    if isinstance(error, ImportError):
        scheme = url.partition("://")[0]
        package = _PACKAGE_OF_SCHEME.get(scheme, error.name or "")
        is_s3 = package == "s3fs"
        install = [f"pip install '{requirement('s3' if is_s3 else 'remote')}'"]
        if package and not is_s3:
            install.append(package)
        return InputError(
            f"reading {scheme}:// URLs needs {package or 'the extra remote'}",
            path=shown,
            hint=f"{' '.join(install)}, or copy the files here",
        )
    if isinstance(error, TimeoutError):
        problem = f"the server did not answer within {ANSWER_TIMEOUT_S:.0f} s"
        return InputError(problem, path=shown, hint="try again, or copy the files here")
    if _is_refused(error):
        return InputError(
            "connection refused",
            path=shown,
            hint="check that the server runs, and the port in the URL",
        )
    return InputError(
        f"cannot be read: {_reason(error)}", path=shown, hint="check the URL and your access to it"
    )


def _is_refused(error: BaseException) -> bool:
    """Return whether nobody listens at the address.

    Libraries wrap the error of the operating system.
    """
    chain: BaseException | None = error
    while chain is not None:
        if getattr(chain, "errno", None) == errno.ECONNREFUSED:
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def _reason(error: BaseException) -> str:
    """Return the text of a foreign error as one line, with the URLs in it as they may be shown."""
    text = " ".join(str(error).split())
    without_secrets = _URL_IN_TEXT.sub(lambda match: public_url(match.group()), text)
    return without_secrets[:MAX_REASON_CHARS] or type(error).__name__
