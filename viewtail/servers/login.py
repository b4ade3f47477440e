"""Settings that every kind of server has: where it is, how to log in, over which TLS.

A store's own group of settings (projectors/stores/*/store.py) is a `Server` with an address of its form. No message
repeats a secret or an address. Nothing here opens a connection.
"""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from viewtail.changes.errors import SettingsError
from viewtail.servers.addresses import MYSQL, AddressForm, Parsed, parse
from viewtail.servers.patience import WORK, Patience
from viewtail.servers.sessions import MySQLAddress


def is_address(form: AddressForm) -> BeforeValidator:
    """Refuses what is no address of that form; the text itself is kept, as a secret."""

    def check(given: object) -> object:
        if isinstance(given, str):
            parse(given, form)
        return given

    return BeforeValidator(check)


MySQLUrl = Annotated[SecretStr, is_address(MYSQL)]
OWN_DATABASE = "viewtail"  # of viewtail's own tables, unless a setting names another
Name = Annotated[str, Field(min_length=1, max_length=64)]


class Group(BaseModel):
    """A group of settings; unknown names in it are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Server(Group):
    """The login to a server, and its TLS."""

    user: str | None = Field(None, description="user, when it is not part of the address")
    password: SecretStr | None = Field(None, description="password, when it is not part of the address")
    password_file: Path | None = Field(None, description="a file that holds the password")
    tls: bool | None = Field(None, description="speak TLS; by default when a tls_ option or the address says so")
    tls_ca: Path | None = Field(None, description="certificates to trust (PEM), instead of the system's")
    tls_cert: Path | None = Field(None, description="client certificate (PEM)")
    tls_key: Path | None = Field(None, description="private key of the client certificate (PEM)")
    tls_verify: bool = Field(True, description="check the server's certificate and host name")
    _patience: Patience = PrivateAttr(WORK)

    @property
    def patience(self) -> Patience:
        """Return how long its answers are waited for."""
        return self._patience

    def asked_with(self, patience: Patience) -> Self:
        """The same server, for one who waits so long."""
        found = self.model_copy()
        found._patience = patience
        return found

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("give either password or password_file, not both")
        if (self.tls_key is not None) and self.tls_cert is None:
            raise ValueError("tls_key needs tls_cert, the certificate it belongs to")
        if self.tls is False and any((self.tls_ca, self.tls_cert, self.tls_key)):
            raise ValueError("tls = false contradicts the tls_ options beside it; remove one or the other")
        for name in ("password_file", "tls_ca", "tls_cert", "tls_key"):
            readable(getattr(self, name), name)
        if self.password_file is not None:
            secret_of(self.password_file)
        return self

    def secret(self) -> str | None:
        """The password given beside the address, if any."""
        if self.password_file is not None:
            return secret_of(self.password_file)
        return None if self.password is None else self.password.get_secret_value()

    def parsed(self, url: SecretStr, form: AddressForm) -> Parsed:
        """The parts of an address; the login given beside it comes first."""
        found = parse(url.get_secret_value(), form)
        password = self.secret()
        return replace(found, user=self.user or found.user, password=found.password if password is None else password)

    def context(self, parsed: Parsed) -> ssl.SSLContext | None:
        """A context when TLS is asked for, here or by the address. Raises SettingsError for files that hold no key."""
        is_asked_for = any((self.tls, parsed.is_tls, self.tls_ca, self.tls_cert, not self.tls_verify))
        if self.tls is False or not is_asked_for:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca and str(self.tls_ca))
            if not self.tls_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.tls_cert is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key)
            return context
        except (OSError, ssl.SSLError) as error:
            given = [str(path) for path in (self.tls_ca, self.tls_cert, self.tls_key) if path is not None]
            raise SettingsError(
                f"{', '.join(given)}: no certificate or key in PEM form could be read ({type(error).__name__})"
            ) from None

    def mysql_address(self, url: SecretStr, database: str | None) -> MySQLAddress:
        """Return the address of a MySQL server at `url`."""
        parsed = self.parsed(url, MYSQL)
        return MySQLAddress(
            host=parsed.host,
            port=parsed.port,
            user=parsed.user or "root",
            password=parsed.password or "",
            unix_socket=parsed.socket,
            database=database,
            tls=self.context(parsed),
            certificate=self.tls_cert,
            connect_timeout_s=self.patience.connect_s,
            login_timeout_s=self.patience.login_s,
            io_timeout_s=self.patience.answer_s,
            silent=self.patience.silent,
        )


def readable(path: Path | None, name: str) -> None:
    """Raises ValueError where the file cannot be opened."""
    if path is None:
        return
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{name}: the file {str(path)!r} cannot be read ({error.strerror})") from None


def secret_of(path: Path) -> str:
    """The first and only line of a secret's file."""
    try:
        text = path.read_text().removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"the file {str(path)!r} cannot be read as UTF-8 text") from None
    if not text or "\n" in text:
        raise ValueError(f"the file {str(path)!r} must hold the secret on one line, and nothing else")
    return text
