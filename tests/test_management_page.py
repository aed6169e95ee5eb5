"""The management page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pika
import pytest

import warren
from tests.support.management_tools import Api
from tests.support.names import NAMES
from tests.support.server_tools import served
from warren import management
from warren.management.server import ManagementServer
from warren.server import ServerSettings

selenium = pytest.importorskip("selenium", reason="no selenium")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

from docs.draw_management import chromium, log_in, waited  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None,
        reason="no browser on this machine (Debian: apt-get install chromium chromium-driver)",
    ),
    pytest.mark.xdist_group("browser"),
]

Browser = webdriver.Chrome
REFUSED = {"empty", "256 bytes", "256 bytes of 128 characters", "half of a surrogate pair"}
"""Names that no queue can have, or none from outside."""
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[warren.Node]:
    with warren.open(tmp_path_factory.mktemp("node")) as node:
        jobs = node.queue("jobs")
        jobs.publish_many([b'{"job": %d}' % number for number in range(30)], headers={"shop": HOSTILE}).wait()
        node.queue(HOSTILE).publish(HOSTILE.encode()).wait()
        node.queue("empty")
        yield node


@pytest.fixture(scope="module")
def server(node: warren.Node) -> Iterator[ManagementServer]:
    with management.serve(node, port=0) as server:
        yield server


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(chrome: Browser, server: ManagementServer) -> Iterator[Browser]:
    """Logged in, at the list of queues; at the end, the console has no errors."""
    chrome.get("about:blank")
    chrome.get(f"{server.url}#/queues")
    chrome.execute_script("localStorage.clear()")
    if waited(chrome, "form.login, tbody th").tag_name == "form" or chrome.find_element(By.ID, "who").text != "guest":
        chrome.delete_all_cookies()
        log_in(chrome, server.url, view="queues")
    waited(chrome, "tbody th", "jobs")
    yield chrome
    errors = [entry["message"] for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [message for message in errors if "Failed to load resource" not in message]  # a refused request is one


def _click(browser: Browser, text: str) -> None:
    waited(browser, "main button, main a, dialog button", text).click()


def _go(browser: Browser, view: str) -> None:
    """Show a view, even if it is shown already."""
    browser.execute_script(
        """document.querySelector('main > *').dataset.old = '';
        history.replaceState(null, '', `#/${arguments[0]}`); dispatchEvent(new Event('hashchange'));""",
        view,
    )
    waited(browser, "main > :not([data-old]) h2")


def _dialog(browser: Browser, button: str, **values: str | bool) -> None:
    """Fill in a dialog, and press its button. A text with "=" is a table's name and value."""
    waited(browser, "dialog[open]")
    for name, value in values.items():
        field = browser.find_element(By.CSS_SELECTOR, f"dialog [name={name}], dialog [data-table={name}]")
        if isinstance(value, bool):
            if field.is_selected() != value:
                field.click()
        elif field.get_attribute("data-table"):
            key, _, content = value.partition("=")
            field.send_keys(key, Keys.TAB, content)
        elif field.tag_name == "select":
            Select(field).select_by_value(value)
        else:
            if field.get_attribute("type") != "file":
                field.clear()
            field.send_keys(value)
    waited(browser, "dialog button", button).click()


def _eventually(browser: Browser, check: Callable[[], Any]) -> None:
    """Wait until ``check`` returns something true. The page may replace an element while it is read."""
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 15, 0.05, [StaleElementReferenceException]).until(lambda _: check())


def test_a_wrong_password_is_said_and_a_right_one_lets_in(browser: Browser, server: ManagementServer) -> None:
    waited(browser, "#logout").click()
    waited(browser, "form.login")
    browser.find_element(By.NAME, "username").send_keys("guest")
    browser.find_element(By.NAME, "password").send_keys("wrong", Keys.ENTER)
    waited(browser, "form.login .error", "No user has this name and password.")
    browser.switch_to.active_element.send_keys("guest", Keys.ENTER)  # it has the focus, and its text is selected
    waited(browser, "tbody th", "jobs")  # the view that was left
    cookie = browser.get_cookie("warren_session")
    assert cookie is not None
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert browser.execute_script("return document.cookie") == ""


def test_queues_are_drawn_live(browser: Browser, node: warren.Node) -> None:
    def bar(name: str) -> str:
        rows = [row for row in browser.find_elements(By.CSS_SELECTOR, "tbody tr") if row.text.startswith(name)]
        return str(rows[0].find_element(By.CSS_SELECTOR, "svg").get_attribute("aria-label"))

    assert re.fullmatch(r"(Q\d|delta) 30", bar("jobs"))
    assert bar("empty") == "empty"
    node.queue("empty").publish_many([b"x"] * 5).wait()
    _eventually(browser, lambda: bar("empty").endswith(" 5"))
    node.queue("empty").purge()
    _eventually(browser, lambda: bar("empty") == "empty")


def test_the_overview_has_numbers_memory_plots_and_addresses(browser: Browser, node: warren.Node) -> None:
    _go(browser, "overview")
    plots = "return [...document.querySelectorAll('svg.plot')].map((plot) => plot.getAttribute('aria-label'))"
    _eventually(browser, lambda: "jobs" not in node.name and "ready" in str(browser.execute_script(plots)))
    gauge = browser.find_element(By.CSS_SELECTOR, ".gauge svg").get_attribute("aria-label")
    assert re.fullmatch(r"[\d.]+ [kMG]B of [\d.]+ [kMGT]B; paging begins at .*", gauge or "")
    waited(browser, "tbody th", "http")
    assert "no alarms" in browser.find_element(By.TAG_NAME, "main").text
    Select(browser.find_element(By.CSS_SELECTOR, "main select")).select_by_value("hour")
    _eventually(
        browser,
        lambda: (
            len(str(browser.execute_script("return document.querySelector('.curve').getAttribute('points')")).split())
            == 61
        ),
    )


def test_all_is_done_by_keyboard(browser: Browser) -> None:
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys("/")
    assert browser.switch_to.active_element.get_attribute("type") == "search"
    browser.switch_to.active_element.send_keys("job")
    _eventually(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "tbody tr")) == 1)
    for _ in range(20):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        if browser.switch_to.active_element.text == "jobs":
            break
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    waited(browser, "h2", "jobs")
    button = waited(browser, "button", "Publish…")
    button.send_keys(Keys.ENTER)
    waited(browser, "dialog[open]")
    assert browser.switch_to.active_element.get_attribute("name") == "payload"
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    _eventually(browser, lambda: not browser.find_elements(By.CSS_SELECTOR, "dialog"))
    assert browser.switch_to.active_element == button


def test_messages_are_published_browsed_got_moved_and_purged(browser: Browser, node: warren.Node) -> None:
    waited(browser, "tbody th a", "jobs").click()
    _click(browser, "Browse")
    _eventually(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "details")) == 30)
    browser.find_element(By.CSS_SELECTOR, "summary").click()
    shown = browser.find_element(By.CSS_SELECTOR, "details").text
    assert '{"job": 0}' in shown
    assert HOSTILE in shown
    _click(browser, "Publish…")
    _dialog(browser, "Publish", payload=HOSTILE, headers="n=1", properties="content_type=text/html")
    waited(browser, "#result", "The message was published.")
    assert len(node.queue("jobs")) == 31
    _click(browser, "Get…")
    _dialog(browser, "Get", count="2")
    _eventually(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "details")) == 2)
    assert len(node.queue("jobs")) == 31
    _click(browser, "Move…")
    _dialog(browser, "Move", to="nowhere")
    waited(browser, "dialog .error", "no queue 'nowhere' in vhost '/'")
    _dialog(browser, "Move", to=Keys.CONTROL + "a" + Keys.NULL + "empty", count="10")
    waited(browser, "#result", "10 messages were moved to empty.")
    assert (len(node.queue("jobs")), len(node.queue("empty"))) == (21, 10)
    _click(browser, "Purge…")
    _dialog(browser, "Delete all ready messages")
    waited(browser, "#result", "The queue was purged.")
    assert len(node.queue("jobs")) == 0
    node.queue("empty").purge()


@pytest.mark.slow
def test_messages_are_chosen_by_condition_and_taken_moved_and_deleted_one_by_one(
    browser: Browser, node: warren.Node
) -> None:
    mended = node.queue("mended", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "died"})
    died = node.queue("died")
    for number in range(6):
        mended.publish(b"m%d" % number, headers={"n": number}).wait()
    (first,) = mended.get_many(1)
    first.reject()

    def previews() -> list[str]:
        script = "return [...document.querySelectorAll('summary .preview')].map((one) => one.textContent)"
        found: list[str] = browser.execute_script(script)
        return found

    def this_one(button: str) -> None:
        waited(browser, "summary .preview").click()
        _click(browser, button)

    _eventually(browser, lambda: len(died) == 1)
    _eventually(browser, lambda: "mended" in browser.find_element(By.CSS_SELECTOR, "tbody").text)
    waited(browser, "tbody th a", "mended").click()
    condition = waited(browser, "input[name=condition]")
    condition.send_keys("headers['n'] BETWEEN 2 AND 4", Keys.ENTER)
    _eventually(browser, lambda: previews() == ["m2", "m3", "m4"])
    this_one("Take it")
    waited(browser, "#result", "The message was taken off the queue.")
    assert [one.body for one in mended.browse()] == [b"m1", b"m3", b"m4", b"m5"]
    _click(browser, "Browse")
    _eventually(browser, lambda: previews() == ["m3", "m4"])
    this_one("Move it…")
    _dialog(browser, "Move", to="empty")
    waited(browser, "#result", "The message was moved to empty.")
    _eventually(browser, lambda: previews() == ["m4"])
    this_one("Delete it…")
    _dialog(browser, "Delete the message")
    _eventually(browser, lambda: previews() == [])
    assert [one.body for one in mended.browse()] == [b"m1", b"m5"]
    condition.send_keys(Keys.CONTROL + "a" + Keys.NULL, "n =", Keys.ENTER)
    _eventually(browser, lambda: "character" in browser.find_element(By.ID, "result").text)
    _click(browser, "Remove…")
    _dialog(browser, "Delete these messages", where=Keys.CONTROL + "a" + Keys.NULL + "body = 'm5'")
    waited(browser, "#result", "1 message was deleted.")
    waited(browser, "main a", "All queues").click()
    waited(browser, "tbody th a", "died").click()
    _click(browser, "Requeue…")
    _dialog(browser, "Send back")
    waited(browser, "#result", "1 dead letter was sent back.")
    assert [one.body for one in mended.browse()] == [b"m1", b"m0"]
    node.queue("empty").purge()


def test_names_and_messages_are_texts(browser: Browser) -> None:
    waited(browser, "tbody th a", HOSTILE).click()
    waited(browser, "h2", HOSTILE)
    _click(browser, "Browse")
    waited(browser, "summary", HOSTILE)
    assert not browser.find_elements(By.CSS_SELECTOR, "main img")


def test_light_and_dark_follow_the_system_or_the_switch(browser: Browser) -> None:
    def background() -> str:
        return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))

    light = background()
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    try:
        assert background() != light
        switch = browser.find_element(By.ID, "theme")
        switch.click()
        assert (switch.text, background()) == ("Theme: light", light)
        browser.refresh()
        waited(browser, "tbody th", "jobs")
        assert background() == light
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [dark[0] | {"value": "light"}]})


def test_what_can_be_used_has_a_name(browser: Browser) -> None:
    wanting = {"button", "link", "textbox", "searchbox", "combobox", "image", "checkbox", "spinbutton", "table"}

    def nameless(at_least: int) -> list[Any]:
        nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        found = [one for one in nodes if not one["ignored"] and one["role"]["value"] in wanting]
        assert len(found) >= at_least
        return [one["role"]["value"] for one in found if not one.get("name", {}).get("value")]

    assert nameless(10) == []
    waited(browser, "tbody th a", "jobs").click()
    waited(browser, "h2", "jobs")
    _eventually(browser, lambda: browser.find_element(By.CSS_SELECTOR, "svg.plot").get_attribute("aria-label"))
    assert nameless(10) == []
    _click(browser, "Publish…")
    waited(browser, "dialog[open]")
    assert nameless(4) == []


def test_publishers_that_are_blocked_are_reported(chrome: Browser, tmp_path: Path) -> None:
    with (
        warren.open(tmp_path / "node", vm_memory_high_watermark=0.000001) as node,
        management.serve(node, port=0) as server,
    ):
        chrome.delete_all_cookies()
        log_in(chrome, server.url)
        waited(chrome, "#status", "memory alarm: publishers are blocked")
        assert chrome.find_element(By.CSS_SELECTOR, ".gauge").get_attribute("class") == "gauge over"


@pytest.mark.slow
def test_queues_of_any_name_are_listed_and_opened_and_none_is_read_as_html(chrome: Browser, tmp_path: Path) -> None:
    links = "[...document.querySelectorAll('tbody th a')]"
    names = [name for what, name in NAMES.items() if what not in REFUSED]
    unopened = {NAMES["dots"], NAMES["a byte that is no UTF-8"]}  # a browser asks for neither as it is
    with warren.open(tmp_path / "node", sync="os") as node, management.serve(node, port=0) as server:
        for name in names:
            node.queue(name)
        chrome.get(server.url)
        chrome.delete_all_cookies()
        log_in(chrome, server.url, view="queues")
        waited(chrome, "tbody th a")
        listed = chrome.execute_script(f"return {links}.map(a => a.textContent)")
        assert sorted(listed) == sorted(name.replace("\udcff", "?") for name in names)
        for name in names:
            if name in unopened:
                continue
            chrome.execute_script(f"{links}.find(a => a.textContent === arguments[0]).click()", name)
            heading = "return document.querySelector('main h2')?.textContent === arguments[0]"
            _eventually(chrome, partial(chrome.execute_script, heading, name))
            _click(chrome, "All queues")
            waited(chrome, "main h2", "Queues")
            waited(chrome, "tbody th a")
        assert not chrome.find_elements(By.CSS_SELECTOR, "main script")
    chrome.get_log("browser")  # the server is gone, which the page says


@pytest.fixture
def phone(chrome: Browser) -> Iterator[Browser]:
    """390 pixels wide."""
    screen = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    yield chrome
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_on_a_phone_numbers_come_first_and_nothing_is_cut(phone: Browser, tmp_path: Path) -> None:
    settings = ServerSettings(port=0, management=management.ManagementSettings(management_tcp_port=0))
    with served(tmp_path / "node", settings) as here, here.channel():
        name = "a.rather-long.name-of.a-queue.of.dead-letters"
        here.node.queue(name).publish_many([b"x"] * 12_345).wait()
        here.node.bind(name, "amq.topic", "k" * 255)
        assert here.server.management is not None
        log_in(phone, here.server.management.url)
        for page, text in (
            ("queues", "rather"),
            ("connections", "->"),
            ("exchanges", "amq.topic"),
            ("exchange/%2F/amq.topic", "rather"),
            ("admin/vhosts", "/"),
        ):
            phone.execute_script(f"location.hash = '#/{page}'")
            waited(phone, "tbody th", text)
            every = "[document.documentElement, ...document.querySelectorAll('.scroll')]"
            assert max(phone.execute_script(f"return {every}.map((one) => one.scrollWidth)")) <= 390
            values = phone.find_elements(By.CSS_SELECTOR, "td.number:not(.wide)")
            assert values or page.startswith("exchange/")
            assert all(one.is_displayed() and one.rect["x"] + one.rect["width"] <= 390 for one in values)
            if page == "connections":
                lines = "[...document.querySelectorAll('.whole')].map((one) => one.getClientRects().length)"
                assert set(phone.execute_script(f"return {lines}")) == {1}
        for address, drawn in (("overview", ".gauge"), (f"queue/%2F/{name}", ".tall")):
            phone.execute_script(f"location.hash = '#/{address}'")
            below = waited(phone, drawn).rect["y"]
            assert phone.find_element(By.CSS_SELECTOR, ".numbers").rect["y"] < below


def test_the_smallest_phone_shows_pages_without_sideways_scrolling(browser: Browser) -> None:
    screen = {"width": 320, "height": 568, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        for page, text in (("queues", "jobs"), ("queue/%2F/jobs", "Browse"), ("exchanges", "amq.topic")):
            browser.execute_script(f"location.hash = '#/{page}'")
            waited(browser, "tbody th, main button", text)
            assert browser.execute_script("return document.documentElement.scrollWidth") == 320, page
        links = browser.find_elements(By.CSS_SELECTOR, "nav a")
        assert all(one.is_displayed() and one.rect["x"] + one.rect["width"] <= 320 for one in links)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("name", ["nosuch", "__proto__", "constructor", "toString", "valueOf"])
def test_an_address_that_is_no_view_shows_the_overview(browser: Browser, name: str) -> None:
    browser.execute_script("localStorage.setItem('theme', arguments[0])", name)
    browser.execute_script("location.hash = `#/${arguments[0]}`; location.reload()", name)
    waited(browser, "main h2", "Overview")
    assert browser.find_element(By.ID, "status").text == ""
    assert browser.find_element(By.ID, "theme").text == "Theme: auto"


def test_a_log_scale_says_so_and_a_rate_of_zero_is_0(browser: Browser) -> None:
    assert "on a log scale" in browser.find_element(By.CSS_SELECTOR, ".legend").text
    _eventually(browser, lambda: browser.find_element(By.CSS_SELECTOR, "td.number:nth-of-type(4)").text == "0")


@pytest.mark.parametrize("address", ["#/queue/%", "#/queue/%2F/%", "#/queue/%/x", "#/%", "#/queue/a/b/c"])
def test_an_address_that_is_none_is_no_error(browser: Browser, address: str) -> None:
    browser.execute_script(f"location.hash = '{address}'")
    browser.refresh()
    is_queue = address.count("/") == 3
    waited(browser, "main h2", "" if is_queue else "Overview")
    if is_queue:
        waited(browser, "#status", "does not exist" if address.endswith("x") else "no queue '%'")


# ── administration ───────────────────────────────────────────────────────────────────────────────────────────────────

Values = dict[str, str | bool]


@attrs.frozen
class Form:
    """A form of a view, what is entered, and the row that it adds."""

    view: str
    opens: str
    submits: str
    values: Values
    row: str = ""
    path: str = ""
    """Of what it makes."""
    removes: str = ""
    """The verb of the button that deletes the row; empty: the row has none."""

    def __str__(self) -> str:
        return f"{self.view} {self.opens}"


FORMS = (
    Form("queues", "Add a queue…", "Declare", {"name": "new", "arguments": "x-max-length=7"}, "new", "/queues/%2F/new"),
    Form("queues", "Add a queue…", "Declare", {"name": "log", "type": "stream"}, "log", "/queues/%2F/log"),
    Form("exchanges", "Add an exchange…", "Declare",
         {"name": "new", "type": "topic", "arguments": "alternate-exchange=amq.fanout"},
         "new", "/exchanges/%2F/new", "Delete"),
    Form("exchange/%2F/amq.topic", "Bind…", "Bind", {"destination": "jobs", "routing_key": "a.#"},
         "queue jobs", "/bindings/%2F/e/amq.topic/q/jobs/a.%23", "Unbind"),
    Form("queue/%2F/jobs", "Bind…", "Bind", {"source": "amq.headers", "arguments": "n=1"},
         "amq.headers", removes="Unbind"),
    Form("admin/users", "Add a user…", "Add", {"name": "new", "password": "p", "tags": "monitoring"},
         "new", "/users/new", "Delete"),
    Form("admin/users", "Set permissions…", "Set", {"user": "ann", "write": "^a"},
         "ann", "/permissions/%2F/ann", "Clear"),
    Form("admin/users", "Set topic permissions…", "Set", {"user": "ann", "read": "^a"},
         "ann", "/topic-permissions/%2F/ann", "Clear"),
    Form("admin/users", "Set a limit…", "Set", {"user": "ann", "value": "7"}, "ann", "/user-limits/ann", "Clear"),
    Form("admin/vhosts", "Add a vhost…", "Add", {"name": "new", "description": "a test"},
         "new", "/vhosts/new", "Delete"),
    Form("admin/vhosts", "Set a limit…", "Set", {"name": "max-queues", "value": "900"},
         "/", "/vhost-limits/%2F", "Clear"),
    Form("admin/policies", "Add a policy…", "Set", {"name": "new", "pattern": "^x", "definition": "max-length=7"},
         "new", "/policies/%2F/new", "Delete"),
    Form("admin/policies", "Add an operator policy…", "Set",
         {"name": "op", "pattern": "^x", "definition": "expires=70000"},
         "op", "/operator-policies/%2F/op", "Delete"),
    Form("admin/parameters", "Set a parameter…", "Set",
         {"component": "shovel", "name": "new", "value": '{"src-uri": "amqp://"}'},
         "shovel", "/parameters/shovel/%2F/new", "Delete"),
    Form("admin/parameters", "Set a global parameter…", "Set", {"name": "new", "value": "[1]"},
         "new", "/global-parameters/new", "Delete"),
)  # fmt: skip


@pytest.fixture
def api(node: warren.Node, server: ManagementServer) -> Iterator[Api]:
    with Api(server.url) as api:
        api.ask("PUT", "/users/ann", {"password": "p", "tags": "policymaker"})
        yield api
        api.ask("DELETE", "/users/ann")


def _rows(browser: Browser, text: str) -> list[Any]:
    """The rows that begin with a text, of a table that can be changed."""
    script = """return [...document.querySelectorAll('main tbody tr')].filter((row) =>
        row.firstElementChild.textContent.trim().startsWith(arguments[0]))"""
    rows: list[Any] = browser.execute_script(script, text)
    return rows


QUICK = {"exchange/%2F/amq.topic", "admin/policies"}
"""The views whose forms the default run fills in."""


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=() if form.view in QUICK else pytest.mark.slow) for form in FORMS], ids=str
)
def test_a_form_makes_a_row_that_can_be_deleted(browser: Browser, api: Api, form: Form) -> None:
    _go(browser, form.view)
    answered = "main tbody tr, main [role=status]:not(:empty)"
    _eventually(browser, lambda: browser.find_elements(By.CSS_SELECTOR, answered))
    before = _rows(browser, form.row)
    buttons = browser.find_elements(By.CSS_SELECTOR, "main button")
    next(button for button in buttons if button.text == form.opens).click()
    _dialog(browser, form.submits, **form.values)
    _eventually(browser, lambda: len(_rows(browser, form.row)) == len(before) + 1)
    waited(browser, "#result", "was saved.")
    if form.path:
        document = json.dumps(api.get(form.path))
        secret = form.values.get("password")
        assert all(str(value).rpartition("=")[2] in document for value in form.values.values() if value != secret)
    if form.removes:
        [row] = [row for row in _rows(browser, form.row) if row not in before]
        row.find_element(By.CSS_SELECTOR, f"button[aria-label^='{form.removes}…']").click()
        waited(browser, "dialog[open] h2", form.removes)
        assert browser.switch_to.active_element.text == "Cancel"  # Enter alone deletes nothing
        waited(browser, "dialog button.danger", form.removes).click()
    else:
        api.ask("DELETE", form.path)
    _eventually(browser, lambda: len(_rows(browser, form.row)) == len(before))
    if form.path:
        answer = api.ask("GET", form.path)
        assert answer.status == 404 or answer.document == []


def test_what_exists_is_changed_and_its_password_stays(browser: Browser, api: Api) -> None:
    _go(browser, "admin/users")
    waited(browser, "button[aria-label='Edit… ann']").click()
    name = waited(browser, "dialog [name=name]")
    assert (name.get_attribute("value"), name.is_enabled()) == ("ann", False)
    _dialog(browser, "Save", tags="monitoring")
    waited(browser, "#result", "ann was changed.")
    with Api(api.url, "ann", "p") as ann:
        assert ann.get("/whoami") == {"name": "ann", "tags": ["monitoring"]}
    assert browser.switch_to.active_element.get_attribute("aria-label") == "Edit… ann"  # the focus comes back


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Form("queues", "Add a queue…", "Declare", {"name": "jobs", "arguments": "x-max-length=1"}), "inequivalent"),
        (Form("queues", "Add a queue…", "Declare", {"name": "z" * 256}), "more than 255 bytes"),
        (Form("queue/%2F/jobs", "Bind…", "Bind", {"source": "nowhere"}), "nowhere"),
        (Form("admin/users", "Set permissions…", "Set", {"user": "nobody"}), "no such user or vhost"),
        (Form("admin/policies", "Add a policy…", "Set", {"name": "x", "pattern": "(", "definition": "a=1"}), "invalid"),
        (Form("admin/policies", "Add a policy…", "Set", {"name": "x", "pattern": "x", "definition": "a=1"}),
         '[{"a",1}] are not recognised'),
        (Form("admin/parameters", "Set a global parameter…", "Set", {"name": "x", "value": "{"}), "this is not JSON"),
    ],
    ids=str,
)  # fmt: skip
def test_a_refusal_is_shown_in_the_dialog_which_stays(browser: Browser, form: Form, reason: str) -> None:
    _go(browser, form.view)
    _click(browser, form.opens)
    _dialog(browser, form.submits, **form.values)
    waited(browser, "dialog [role=alert]", reason)
    is_within = "const box = document.querySelector('dialog'); return box.scrollWidth <= box.clientWidth"
    assert browser.execute_script(is_within)  # however long the reason is
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    _eventually(browser, lambda: not browser.find_elements(By.CSS_SELECTOR, "dialog"))


def test_definitions_are_uploaded(browser: Browser, api: Api, tmp_path: Path) -> None:
    (tmp_path / "definitions.json").write_text('{"queues": [{"name": "up", "vhost": "/", "durable": true}]}')
    (tmp_path / "wrong.json").write_text("[")
    _go(browser, "admin/definitions")
    _click(browser, "Upload…")
    _dialog(browser, "Upload", file=str(tmp_path / "wrong.json"))
    waited(browser, "dialog [role=alert]", "failed_to_parse_json")
    _dialog(browser, "Upload", file=str(tmp_path / "definitions.json"))
    waited(browser, "#result", "definitions.json was uploaded.")
    assert api.get("/queues/%2F/up")["durable"] is True
    api.ask("DELETE", "/queues/%2F/up")


def test_a_queue_is_deleted_after_a_question(browser: Browser, api: Api) -> None:
    api.ask("PUT", "/queues/%2F/old", {"durable": True})
    _go(browser, "queue/%2F/old")
    _click(browser, "Delete…")
    waited(browser, "dialog button", "Cancel").click()
    assert api.ask("GET", "/queues/%2F/old").status == 200
    _click(browser, "Delete…")
    _dialog(browser, "Delete", empty=True)
    waited(browser, "main h2", "Queues")
    waited(browser, "#result", "old: deleted.")
    assert api.ask("GET", "/queues/%2F/old").status == 404


def test_connections_and_channels_are_shown_and_closed(chrome: Browser, tmp_path: Path) -> None:
    settings = ServerSettings(port=0, management=management.ManagementSettings(management_tcp_port=0))
    with served(tmp_path / "node", settings) as here, here.connection() as connection:
        channel = connection.channel()
        channel.queue_declare("inbox")
        channel.basic_consume("inbox", lambda *_: None, consumer_tag="reader")
        assert here.server.management is not None
        chrome.delete_all_cookies()
        log_in(chrome, here.server.management.url, view="channels")
        waited(chrome, "tbody th a").click()
        waited(chrome, "tbody th", "reader")
        _click(chrome, "Its connection")
        waited(chrome, "dd", "AMQP 0-9-1")
        _click(chrome, "Close…")
        _dialog(chrome, "Close", reason="maintenance")
        with pytest.raises(pika.exceptions.ConnectionClosed, match="maintenance"):
            connection.process_data_events(time_limit=10)
        waited(chrome, "#status", "This does not exist")
        _go(chrome, "connections")
        waited(chrome, "main [role=status]", "There are no connections.")


@pytest.mark.parametrize(
    ("tag", "admin", "buttons"),
    [
        ("management", [], []),
        ("monitoring", [], []),
        ("policymaker", ["Policies", "Parameters"], ["Add a policy…"]),
    ],
)
def test_tags_decide_what_is_shown(browser: Browser, api: Api, tag: str, admin: list[str], buttons: list[str]) -> None:
    api.ask("PUT", "/users/ann", {"password": "p", "tags": tag})
    api.ask("PUT", "/permissions/%2F/ann", {"configure": "^ann", "write": "", "read": ""})
    browser.delete_all_cookies()
    log_in(browser, api.url + "/", "ann", "p")
    waited(browser, "main h2", "Overview")
    headings = [heading.text for heading in browser.find_elements(By.CSS_SELECTOR, "main h2")]
    assert headings == (["Overview", "Node"] if tag == "monitoring" else ["Overview"])
    assert browser.find_element(By.ID, "admin").is_displayed() == bool(admin)
    browser.execute_script("location.hash = '#/admin/users'")
    _eventually(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "main .pages a") or not admin)
    assert [link.text for link in browser.find_elements(By.CSS_SELECTOR, "main .pages a")] == admin
    shown = [button.text for button in browser.find_elements(By.CSS_SELECTOR, "main .panel button")]
    assert [text for text in shown if text.endswith("…")] == buttons
    _go(browser, "queues")
    _click(browser, "Add a queue…")
    _dialog(browser, "Declare", name="others")
    waited(browser, "dialog [role=alert]", "Access refused: ")
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)


def test_a_server_that_goes_away_and_comes_back(chrome: Browser, tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        node.queue("jobs")
        server = management.serve(node, port=0)
        chrome.delete_all_cookies()
        log_in(chrome, server.url, view="queues")
        waited(chrome, "tbody th", "jobs")
        _click(chrome, "Add a queue…")
        port = server.addresses[0][1]
        server.stop()
        waited(chrome, "#status", "The server does not answer.")
        assert "jobs" in chrome.find_element(By.TAG_NAME, "tbody").text  # the last numbers stay
        with management.serve(node, port=port):
            waited(chrome, "form.login")  # sessions end with the server
            _dialog(chrome, "Declare", name="entered-before")
            waited(chrome, "dialog [role=alert]", "The session has ended: log in again.")
            chrome.switch_to.active_element.send_keys(Keys.ESCAPE)
            chrome.find_element(By.NAME, "username").send_keys("guest")
            chrome.find_element(By.NAME, "password").send_keys("guest", Keys.ENTER)
            waited(chrome, "tbody th", "jobs")
            assert chrome.find_element(By.ID, "status").text == ""
    chrome.get_log("browser")  # of the requests that failed


MANY = 10_000


@pytest.fixture(scope="module")
def crowded() -> Iterator[str]:
    """The address of a node with ten thousand queues, exchanges, bindings and users."""
    numbers = [f"{number:05}" for number in range(MANY)]
    common = {"vhost": "/", "durable": True, "auto_delete": False}
    topic = common | {"type": "topic", "internal": False}
    user = {"password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": []}
    with warren.open(":memory:") as node:
        node.import_definitions({
            "queues": [{"name": f"queue-{number}"} | common for number in numbers],
            "exchanges": [{"name": f"exchange-{number}"} | topic for number in numbers],
            "users": [{"name": f"user-{number}"} | user for number in numbers],
            "bindings": [
                {"source": "amq.topic", "vhost": "/", "destination": f"queue-{number}", "destination_type": "queue",
                 "routing_key": f"key-{number}", "arguments": {}}
                for number in numbers
            ],
        })  # fmt: skip
        with management.serve(node, port=0) as server:
            yield server.url


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "row"),
    [
        ("queues", "queue"),
        ("exchanges", "exchange"),
        ("exchange/%2F/amq.topic", "queue queue"),
        ("admin/users", "user"),
    ],
)
def test_ten_thousand_rows_are_paged_sorted_and_filtered(chrome: Browser, crowded: str, view: str, row: str) -> None:
    chrome.get(crowded)
    chrome.delete_all_cookies()
    log_in(chrome, crowded, view=view)
    table = "main .panel:has(nav:not([hidden])) "
    place = waited(chrome, f"{table} nav span", " in all")
    assert re.match(r"page 1 of 10[01]: 10,0\d\d in all", place.text.replace(" · ", ": "))
    assert len(chrome.find_elements(By.CSS_SELECTOR, f"{table} tbody tr")) == 100
    waited(chrome, f"{table} nav button", "Next").click()
    waited(chrome, f"{table} nav span", "page 2 of")
    assert len(chrome.find_elements(By.CSS_SELECTOR, f"{table} tbody tr")) == 100
    waited(chrome, f"{table} thead button").click()
    order = chrome.find_element(By.CSS_SELECTOR, f"{table} thead th").get_attribute("aria-sort")
    if order == "ascending" and row != "queue":
        waited(chrome, f"{table} thead button").click()
        order = "descending"
    first = f"{row}-{'00000' if order == 'ascending' else '09999'}"
    _eventually(chrome, lambda: chrome.find_element(By.CSS_SELECTOR, f"{table} tbody th").text.startswith(first))
    filters = chrome.find_elements(By.CSS_SELECTOR, f"{table} input[type=search]")
    filters[0].send_keys("09999")
    _eventually(chrome, lambda: len(_rows(chrome, f"{row}-09999")) == 1 and len(_rows(chrome, row)) == 1)
