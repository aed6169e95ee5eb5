"""The suites: where each comes from, what it needs, and how it is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import attrs

from tests.clients.sources import GitTag, Installed, Sdist, Source

Report = Literal["pytest", "junit", "tap", "go"]
"""In which form a suite says what passed."""

PYTEST: Final = ("pytest-reportlog", "pytest-timeout")
HANGS_S: Final = 300
"""A single test that takes longer hangs."""


@attrs.frozen(kw_only=True)
class Suite:
    """One client's tests."""

    name: str
    source: Source
    report: Report
    command: tuple[str, ...]
    """``{report}``: the file to report to; ``{venv}``, ``{source}``, ``{programs}``: directories. It runs in
    ``{source}``."""
    requirements: tuple[str, ...] | None = None
    """What pip installs into an environment of its own; ``{source}``: the suite's directory."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    certificates: Mapping[str, str] = attrs.field(factory=dict)
    """Where in its directory the suite looks for which of our files (names of :mod:`tests.clients.certificates`)."""
    services: tuple[str, ...] = ()
    """What it needs beside the server (of :data:`tests.clients.servers.SERVICES`)."""
    deadline_s: float = 900.0
    note: str = ""
    """For the page: what of the suite runs."""
    paths: tuple[str, ...] = ()
    """What of ``command`` says which tests run, for pytest."""
    shares: str | None = None
    """The suite whose files and environment this one uses."""
    reports_on_output: bool = False
    """Whether the report is what the suite prints."""

    @property
    def directory(self) -> str:
        """The name of its directory in the cache."""
        return self.shares or self.name


def pytest_suite(
    name: str,
    source: Source,
    *paths: str,
    requirements: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    **options: object,
) -> Suite:
    """A suite that pytest runs; ``paths``: which of its files, ``arguments``: further ones of pytest's."""
    command = ("{venv}/bin/python", "-m", "pytest", *paths, "--report-log={report}", f"--timeout={HANGS_S}", "-q")
    return Suite(
        name=name,
        source=source,
        report="pytest",
        command=(*command, "--continue-on-collection-errors", "-p", "no:cacheprovider", *arguments),
        requirements=("{source}", *PYTEST, *requirements),
        paths=paths,
        **options,  # type: ignore[arg-type]
    )


PIKA = pytest_suite(
    "pika",
    GitTag("https://github.com/pika/pika", "1.4.4"),
    "tests/acceptance",
    requirements=("pytest>=8", "gevent", "tornado", "twisted"),
    note="its acceptance tests: blocking, select, asyncio, Tornado, Twisted and gevent connections",
)

PIKA_TLS = attrs.evolve(
    PIKA,
    name="pika-tls",
    shares="pika",
    command=(*PIKA.command, "--use-tls"),
    certificates={
        "testdata/certs/ca_certificate.pem": "ca_certificate.pem",
        "testdata/certs/client_key.pem": "client_key.pem",
        "testdata/certs/client_certificate.pem": "client_certificate.pem",
    },
    note="the same by TLS, client certificates shown",
)

AMQP = pytest_suite(
    "py-amqp",
    Sdist("amqp", "5.4.2"),
    "t/integration",
    requirements=("pytest>=8,<9", "pytest-rerunfailures"),
    environment={"RABBITMQ_HOST": "localhost", "RABBITMQ_5672_TCP": "5672", "RABBITMQ_5671_TCP": "5671"},
    certificates={
        "t/certs/ca_certificate.pem": "ca_certificate.pem",
        "t/certs/client_key.pem": "client_key.pem",
        "t/certs/client_certificate.pem": "client_certificate.pem",
        "t/certs/client_key_broken.pem": "other_key.pem",
        "t/certs/client_certificate_broken.pem": "other_certificate.pem",
    },
    note="`t/integration`, plain and TLS",
)

KOMBU = pytest_suite(
    "kombu",
    Sdist("kombu", "5.7.0"),
    "t/integration/test_py_amqp.py",
    requirements=("pytest>=8", "pytest-rerunfailures", "pytest-freezer"),
    environment={"RABBITMQ_HOST": "localhost", "RABBITMQ_5672_TCP": "5672"},
    note="`t/integration/test_py_amqp.py`",
)

CELERY = pytest_suite(
    "celery",
    Sdist("celery", "5.7.0"),
    "t/integration",
    requirements=(
        *("pytest>=9", "pytest-rerunfailures", "pytest-subtests", "pytest-order", "pytest-click", "freezegun"),
        *("cryptography", "pydantic", "redis", "sqlalchemy", "msgpack", "pyyaml"),
    ),
    arguments=("-p", "celery.contrib.pytest"),
    environment={"TEST_BROKER": "pyamqp://localhost:5672//", "TEST_BACKEND": "redis://localhost:6379/0"},
    services=("redis",),
    deadline_s=3600.0,
    note="`t/integration` with prefork workers, results in Redis",
)

CELERY_RPC = attrs.evolve(
    CELERY,
    name="celery-rpc",
    shares="celery",
    environment={"TEST_BROKER": "pyamqp://localhost:5672//", "TEST_BACKEND": "rpc://"},
    note="the same with results over AMQP (`rpc://`)",
)

AIO_PIKA = pytest_suite(
    "aio-pika",
    GitTag("https://github.com/mosquito/aio-pika", "9.6.0"),
    "tests",
    requirements=("pytest>=8", "aiomisc>=18", "aiomisc-pytest", "shortuuid", "timeout-decorator"),
    environment={"DOCKER_HOST": "tcp://localhost:2375"},
    services=("docker",),
    note="`tests`, plain and TLS, plain connections and robust ones",
)

AMQPLIB = Suite(
    name="amqplib",
    source=GitTag("https://github.com/amqp-node/amqplib", "v2.0.1"),
    report="junit",
    command=("node", "--test", "--test-reporter=junit", "--test-concurrency=1", "--test-timeout=120000"),
    environment={"URL": "amqp://localhost"},
    reports_on_output=True,
    note="its whole suite, Node.js",
)

AMQP091_GO = Suite(
    name="amqp091-go",
    source=Installed(
        "golang-github-rabbitmq-amqp091-go-dev golang-go",
        programs=("go",),
        files=("/usr/share/gocode/src/github.com/rabbitmq/amqp091-go/integration_test.go",),
    ),
    report="go",
    command=("go", "test", "-json", "-count=1", "-tags=integration", "github.com/rabbitmq/amqp091-go"),
    environment={
        "GO111MODULE": "off",
        "GOPATH": "/usr/share/gocode",
        "AMQP_URL": "amqp://guest:guest@127.0.0.1:5672/",
    },
    reports_on_output=True,
    note="its whole suite, with the tag `integration`",
)


def program(
    name: str, package: str, *command: str, files: tuple[str, ...] = (), programs: tuple[str, ...] = ()
) -> Suite:
    """A program of ours that uses a client which Debian packages."""
    return Suite(
        name=name,
        source=Installed(package, programs=(command[0], *programs), files=files),
        report="tap",
        command=command,
        reports_on_output=True,
        deadline_s=120.0,
        note="a program of ours",
    )


RABBITMQ_C = program("rabbitmq-c", "amqp-tools", "sh", "{programs}/rabbitmq_c.sh", programs=("amqp-publish",))
BUNNY = program("bunny", "ruby-bunny", "ruby", "{programs}/bunny.rb", files=("/usr/share/doc/ruby-bunny",))
PHP_AMQPLIB = program(
    "php-amqplib", "php-amqplib php-cli", "php", "{programs}/php_amqplib.php", files=("/usr/share/php/PhpAmqpLib",)
)
JAVA = program(
    "java",
    "librabbitmq-client-java libslf4j-java default-jdk-headless",
    *("java", "-cp", "/usr/share/java/amqp-client.jar:/usr/share/java/slf4j-api.jar", "{programs}/JavaClient.java"),
    files=("/usr/share/java/amqp-client.jar", "/usr/share/java/slf4j-api.jar"),
)

SUITES: Final[Mapping[str, Suite]] = {
    suite.name: suite
    for suite in (
        *(PIKA, PIKA_TLS, AMQP, KOMBU, CELERY, CELERY_RPC),
        *(AIO_PIKA, AMQPLIB, AMQP091_GO, RABBITMQ_C, BUNNY, PHP_AMQPLIB, JAVA),
    )
}
