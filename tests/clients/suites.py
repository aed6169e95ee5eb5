"""The suites: where each comes from, what it needs, and how it is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import attrs

from tests.clients.servers import PROGRAMS
from tests.clients.sources import GitTag, Installed, Needs, Sdist, Source

Report = Literal["pytest", "junit", "tap", "go", "rspec"]
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
    needs: Needs = attrs.field(factory=Needs)
    environment: Mapping[str, str] = attrs.field(factory=dict)
    certificates: Mapping[str, str] = attrs.field(factory=dict)
    """Where in its directory the suite looks for which of our files (names of :mod:`tests.clients.certificates`)."""
    definitions: Mapping[str, object] = attrs.field(factory=dict)
    """What both servers are given first, by the management API, in the form in which RabbitMQ exports it."""
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
    pytest: tuple[str, ...] = ("{venv}/bin/python", "-m", "pytest"),
    interpreter: str | None = None,
    **options: object,
) -> Suite:
    """A suite that pytest runs; ``paths``: which of its files, ``arguments``: further ones of pytest's; ``pytest``: how
    it is started; ``interpreter``: a Python that it needs and this one is not."""
    command = (*pytest, *paths, "--report-log={report}", f"--timeout={HANGS_S}", "-q")
    return Suite(
        name=name,
        source=source,
        report="pytest",
        command=(*command, "--continue-on-collection-errors", "-p", "no:cacheprovider", *arguments),
        needs=Needs(
            python=("{source}", *PYTEST, *requirements),
            interpreter=interpreter,
            programs=() if interpreter is None else (interpreter,),
        ),
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
    deadline_s=3600.0,
    note="`tests`, plain and TLS, plain connections and robust ones",
)

AMQPSTORM = pytest_suite(
    "amqpstorm",
    Sdist("amqpstorm", "3.1.4"),
    "amqpstorm/tests/functional",
    requirements=("pytest>=8", "requests"),
    environment={
        "AMQP_HOST": "localhost",
        "AMQP_USERNAME": "guest",
        "AMQP_PASSWORD": "guest",
        "AMQP_URI": "amqp://guest:guest@localhost:5672/%2F",
        "AMQP_HTTP_URL": "http://localhost:15672",
        "AMQP_SSL_URI": "amqps://guest:guest@localhost:5671/%2F",
        "AMQP_SSL_HOST": "localhost",
    },
    certificates={
        "amqpstorm/tests/resources/ssl/ca_certificate.pem": "ca_certificate.pem",
        "amqpstorm/tests/resources/ssl/client/client_certificate.pem": "client_certificate.pem",
        "amqpstorm/tests/resources/ssl/client/private_key.pem": "client_key.pem",
    },
    note="its functional tests, plain and TLS, and of the management API",
)

AIOAMQP = pytest_suite(
    "aioamqp",
    GitTag("https://github.com/Polyconseil/aioamqp", "aioamqp-0.15.0"),
    "aioamqp/tests",
    requirements=("pytest>=8", "asynctest", "pyrabbit2"),
    interpreter="python3.10",
    note="its whole suite, with pyrabbit2 for the management API",
)

RABBITPY = pytest_suite(
    "rabbitpy",
    GitTag("https://github.com/gmr/rabbitpy", "3.0.2"),
    *("tests/test_integration.py", "tests/integration"),
    requirements=("pytest>=8", "python-dotenv"),
    environment={"RABBITMQ_URL": "amqp://guest:guest@localhost:5672/%2F"},
    note="its integration tests",
)

KIWIPY = pytest_suite(
    "kiwipy",
    GitTag("https://github.com/aiidateam/kiwipy", "v0.9.0"),
    "test/rmq",
    requirements=("{source}[rmq]", "pytest~=7.0", "pytest-asyncio~=0.12,<0.17", "msgpack", "pika"),
    arguments=("--ignore=test/rmq/bench",),
    note="`test/rmq` without its benchmarks",
)

DRAMATIQ = pytest_suite(
    "dramatiq",
    GitTag("https://github.com/Bogdanp/dramatiq", "v2.2.0"),
    *("tests/test_rabbitmq.py", "tests/test_actors.py", "tests/test_worker.py", "tests/test_composition.py"),
    requirements=("{source}[rabbitmq,redis,memcached]", "pytest>=8", "pytest-benchmark"),
    arguments=("-o", "addopts="),
    note="`test_rabbitmq.py` and the files beside it that use the broker",
)

NAMEKO = pytest_suite(
    "nameko",
    GitTag("https://github.com/nameko/nameko", "v3.0.0-rc11"),
    "test",
    requirements=("pytest~=7.4", "requests", "websocket-client", "mock", "setuptools<70", "werkzeug<3"),
    arguments=("-k", "not ssl"),
    pytest=("{venv}/bin/nameko", "test"),
    note="its suite without TLS, each test in a virtual host that the management API makes",
)

FASTSTREAM = pytest_suite(
    "faststream",
    GitTag("https://github.com/ag2ai/faststream", "0.7.4"),
    "tests/brokers/rabbit",
    requirements=(
        "{source}[rabbit,nats,otel,cli,prometheus]",
        "pytest>=8",
        "pytest-asyncio",
        "dirty-equals",
        "freezegun",
        "fastapi",
        "httpx",
    ),
    note="its tests of the RabbitMQ broker",
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


AMQP_CONNECTION_MANAGER = Suite(
    name="amqp-connection-manager",
    source=GitTag("https://github.com/jwalton/node-amqp-connection-manager", "v5.0.0"),
    report="junit",
    command=(
        "../node_modules/.bin/jest",
        "--reporters=jest-junit",
        "--runInBand",
        "--forceExit",
        "--testPathIgnorePatterns=node_modules",
        '--globals={{"ts-jest":{{"diagnostics":false}}}}',
    ),
    environment={"JEST_JUNIT_OUTPUT_FILE": "{report}"},
    needs=Needs(
        programs=("node", "npm"),
        node=(
            *("amqplib@0.10", "promise-breaker@6", "promise-tools@2", "chai@4", "chai-as-promised@7", "chai-jest@1"),
            *("chai-string@1", "jest@29", "jest-junit", "jest-ts-webcompat-resolver", "ts-jest@29", "typescript@5"),
            *("@types/amqplib@0.10", "@types/chai@4", "@types/chai-as-promised@7", "@types/chai-string@1"),
            *("@types/jest@29", "@types/node@22", "@types/whatwg-url@11"),
        ),
    ),
    note="its whole suite, Node.js",
)

RASCAL = Suite(
    name="rascal",
    source=GitTag("https://github.com/onebeyond/rascal", "v21.0.1"),
    report="tap",
    command=("node", "{programs}/zunit_tap.js"),
    environment={"CI": "true"},
    needs=Needs(
        programs=("node", "npm"),
        node=(
            *("amqplib@0.10", "async@3", "debug@4", "forward-emitter@0.1", "generic-pool@3", "lodash@4", "lru-cache@7"),
            *("safe-json-parse@4", "stashback@2", "uuid@8", "xregexp@5", "chance@1", "zunit@4"),
        ),
    ),
    reports_on_output=True,
    note="its whole suite, Node.js, with virtual hosts made by the management API",
)

BUNNY_SPECS = Suite(
    name="bunny-specs",
    source=GitTag("https://github.com/ruby-amqp/bunny", "2.19.0"),
    report="rspec",
    command=(
        *("ruby", "-r", "{programs}/bunny_specs.rb", "-S", "rspec", "--format", "json", "--out", "{report}"),
        *("--format", "documentation", "spec/higher_level_api", "spec/lower_level_api", "spec/issues"),
        *("--exclude-pattern", "**/connection_recovery_spec.rb"),
    ),
    certificates={
        "spec/tls/ca_certificate.pem": "ca_certificate.pem",
        "spec/tls/client_key.pem": "client_key.pem",
        "spec/tls/client_certificate.pem": "client_certificate.pem",
    },
    definitions={
        "vhosts": [{"name": "bunny_testbed"}],
        "users": [
            {"name": "bunny_gem", "password": "bunny_password", "tags": ""},
            {"name": "bunny_reader", "password": "reader_password", "tags": ""},
        ],
        "permissions": [
            {"user": user, "vhost": "bunny_testbed", "configure": own, "write": own, "read": ".*"}
            for user, own in (("guest", ".*"), ("bunny_gem", ".*"), ("bunny_reader", "^---$"))
        ],
    },
    needs=Needs(programs=("ruby", "rspec")),
    note="its specs without the unit and stress ones and those of recovery, with Debian's Bunny of the same version",
)

PHP_AMQPLIB_TESTS = Suite(
    name="php-amqplib-tests",
    source=GitTag("https://github.com/php-amqplib/php-amqplib", "v3.5.3"),
    report="junit",
    command=(
        *("phpunit", "--no-configuration", "--bootstrap", "{programs}/php_bootstrap.php"),
        *("--log-junit", "{report}", "tests/Functional"),
    ),
    certificates={
        "tests/certs/ca_certificate.pem": "ca_certificate.pem",
        "tests/certs/client_key.pem": "client_key.pem",
        "tests/certs/client_certificate.pem": "client_certificate.pem",
    },
    needs=Needs(programs=("php", "phpunit")),
    note="its functional tests, with Debian's php-amqplib of the same version",
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

AMQPLIB_QUORUM = attrs.evolve(
    AMQPLIB,
    name="amqplib-quorum",
    shares="amqplib",
    environment={**AMQPLIB.environment, "NODE_OPTIONS": "--require {programs}/amqplib_quorum.js"},
    note="the same with each named queue a quorum queue",
)


def with_plugin(suite: Suite, plugin: str, note: str, *options: str) -> Suite:
    """A suite for pytest with a plugin of ours that makes its queues quorum queues."""
    return attrs.evolve(
        suite,
        name=f"{suite.name}-quorum",
        shares=suite.name,
        command=(*suite.command, "-p", plugin, *options),
        environment={**suite.environment, "PYTHONPATH": "{programs}"},
        note=note,
    )


AIO_PIKA_QUORUM = with_plugin(
    AIO_PIKA,
    "aio_pika_quorum",
    "the same with each named queue a quorum queue",
    "--deselect=tests/test_rpc.py::TestCase::test_custom_exchange",  # it waits for ever for a queue to delete itself
)
CELERY_QUORUM = with_plugin(CELERY, "celery_quorum", "the same with quorum queues, results in Redis")

JAVA_TESTS = Suite(
    name="java-tests",
    source=GitTag("https://github.com/rabbitmq/rabbitmq-java-client", "v5.18.0"),
    report="tap",
    command=("sh", "{programs}/java_suite.sh", "run", "{report}", "{ctl}"),
    needs=Needs(
        programs=("javac", "python3"),
        beside=(GitTag("https://github.com/rabbitmq/rabbitmq-codegen", "v3.8.9"),),
        build=("sh", str(PROGRAMS / "java_suite.sh"), "build"),
    ),
    deadline_s=3600.0,
    note="its functional and server tests, compiled with Debian's libraries",
)

SUITES: Final[Mapping[str, Suite]] = {
    suite.name: suite
    for suite in (
        *(PIKA, PIKA_TLS, AMQP, KOMBU, CELERY, CELERY_RPC),
        *(AMQPSTORM, AIOAMQP, RABBITPY, KIWIPY, DRAMATIQ, NAMEKO, FASTSTREAM),
        *(AMQPLIB_QUORUM, AIO_PIKA_QUORUM, CELERY_QUORUM),
        *(BUNNY_SPECS, PHP_AMQPLIB_TESTS, AMQP_CONNECTION_MANAGER, RASCAL),
        *(AIO_PIKA, AMQPLIB, AMQP091_GO, RABBITMQ_C, BUNNY, PHP_AMQPLIB, JAVA, JAVA_TESTS),
    )
}
