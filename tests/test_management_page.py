"""The management page in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support.names import NAMES
from tests.support.server_tools import served
from warren import management
from warren.management.server import ManagementServer
from warren.server import ServerSettings

selenium = pytest.importorskip("selenium", reason="no selenium")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

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
    """Logged in, at the list of queues; it has said no errors at the end."""
    chrome.get(server.url)
    chrome.delete_all_cookies()
    chrome.execute_script("localStorage.clear()")
    log_in(chrome, server.url)
    waited(chrome, "tbody th", "jobs")
    yield chrome
    said = [entry["message"] for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [message for message in said if "Failed to load resource" not in message]  # what was refused is one


def _click(browser: Browser, text: str) -> None:
    waited(browser, "main button, main a, dialog button", text).click()


def _dialog(browser: Browser, button: str, **values: str) -> None:
    waited(browser, "dialog[open]")
    for name, value in values.items():
        field = browser.find_element(By.CSS_SELECTOR, f"dialog [name={name}]")
        if field.get_attribute("type") in ("number", "text"):
            field.clear()
        field.send_keys(value)
    waited(browser, "dialog button", button).click()


def _eventually(browser: Browser, check: Callable[[], Any]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 15, poll_frequency=0.05).until(lambda _: check())


def test_a_wrong_password_is_said_and_a_right_one_lets_in(browser: Browser, server: ManagementServer) -> None:
    waited(browser, "#logout").click()
    waited(browser, "form.login")
    browser.find_element(By.NAME, "username").send_keys("guest")
    browser.find_element(By.NAME, "password").send_keys("wrong", Keys.ENTER)
    waited(browser, "form.login .error", "No user has this name and password.")
    browser.switch_to.active_element.send_keys("guest", Keys.ENTER)  # it has the focus, and its text is selected
    waited(browser, "tbody th", "jobs")
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
    gauge = browser.find_element(By.CSS_SELECTOR, ".gauge svg").get_attribute("aria-label")
    assert gauge is not None
    assert re.fullmatch(r"[\d.]+ [kMG]B of [\d.]+ [kMGT]B; paging begins at .*", gauge)


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
    _dialog(browser, "Publish", payload=HOSTILE, headers='{"n": 1}')
    waited(browser, "main [role=status]", "The message was published.")
    assert len(node.queue("jobs")) == 31
    _click(browser, "Get…")
    _dialog(browser, "Get", count="2")
    _eventually(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "details")) == 2)
    assert len(node.queue("jobs")) == 31
    _click(browser, "Move…")
    _dialog(browser, "Move", to="nowhere")
    waited(browser, "dialog .error", "no queue 'nowhere' in vhost '/'")
    _dialog(browser, "Move", to=Keys.CONTROL + "a" + Keys.NULL + "empty", count="10")
    waited(browser, "main [role=status]", "10 messages were moved to empty.")
    assert (len(node.queue("jobs")), len(node.queue("empty"))) == (21, 10)
    _click(browser, "Purge…")
    _dialog(browser, "Delete all ready messages")
    waited(browser, "main [role=status]", "The queue was purged.")
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
    waited(browser, "main [role=status]", "The message was taken off the queue.")
    assert [one.body for one in mended.browse()] == [b"m1", b"m3", b"m4", b"m5"]
    _click(browser, "Browse")
    _eventually(browser, lambda: previews() == ["m3", "m4"])
    this_one("Move it…")
    _dialog(browser, "Move", to="empty")
    waited(browser, "main [role=status]", "The message was moved to empty.")
    _eventually(browser, lambda: previews() == ["m4"])
    this_one("Delete it…")
    _dialog(browser, "Delete the message")
    _eventually(browser, lambda: previews() == [])
    assert [one.body for one in mended.browse()] == [b"m1", b"m5"]
    condition.send_keys(Keys.CONTROL + "a" + Keys.NULL, "n =", Keys.ENTER)
    _eventually(browser, lambda: "character" in browser.find_element(By.CSS_SELECTOR, "main [role=status]").text)
    _click(browser, "Remove…")
    _dialog(browser, "Delete these messages", where=Keys.CONTROL + "a" + Keys.NULL + "body = 'm5'")
    waited(browser, "main [role=status]", "1 messages were deleted.")
    waited(browser, "main a", "All queues").click()
    waited(browser, "tbody th a", "died").click()
    _click(browser, "Requeue…")
    _dialog(browser, "Send back")
    waited(browser, "main [role=status]", "1 dead letters were sent back.")
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
    _eventually(browser, lambda: browser.find_element(By.CSS_SELECTOR, "svg.history").get_attribute("aria-label"))
    assert nameless(10) == []
    _click(browser, "Get…")
    waited(browser, "dialog[open]")
    assert nameless(4) == []


def test_publishers_that_are_held_back_are_said(chrome: Browser, tmp_path: Path) -> None:
    with (
        warren.open(tmp_path / "node", vm_memory_high_watermark=0.000001) as node,
        management.serve(node, port=0) as server,
    ):
        chrome.delete_all_cookies()
        log_in(chrome, server.url)
        waited(chrome, "#status", "memory alarm: publishers are held back")
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
        log_in(chrome, server.url)
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
        assert here.server.management is not None
        log_in(phone, here.server.management.url)
        for page, text in (("queues", "rather"), ("connections", "->"), ("exchanges", "amq.topic")):
            phone.execute_script(f"location.hash = '#/{page}'")
            waited(phone, "tbody th", text)
            every = "[document.documentElement, ...document.querySelectorAll('.scroll')]"
            assert max(phone.execute_script(f"return {every}.map((one) => one.scrollWidth)")) <= 390
            values = phone.find_elements(By.CSS_SELECTOR, "td.number:not(.wide)")
            assert values
            assert all(one.is_displayed() and one.rect["x"] + one.rect["width"] <= 390 for one in values)
            if page == "connections":
                lines = "[...document.querySelectorAll('.whole')].map((one) => one.getClientRects().length)"
                assert set(phone.execute_script(f"return {lines}")) == {1}
        for address, drawn in (("queues", ".gauge"), (f"queue/%2F/{name}", ".tall")):
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
def test_an_address_that_is_no_page_shows_the_queues(browser: Browser, name: str) -> None:
    browser.execute_script("localStorage.setItem('theme', arguments[0])", name)
    browser.execute_script("location.hash = `#/${arguments[0]}`; location.reload()", name)
    waited(browser, "tbody th", "jobs")
    assert browser.find_element(By.ID, "status").text == ""
    assert browser.find_element(By.ID, "theme").text == "Theme: auto"


def test_a_log_scale_says_so_and_a_rate_of_zero_is_0(browser: Browser) -> None:
    assert "on a log scale" in browser.find_element(By.CSS_SELECTOR, ".legend").text
    _eventually(browser, lambda: "out 0/s" in browser.find_element(By.CSS_SELECTOR, ".numbers").text)
    _eventually(browser, lambda: browser.find_element(By.CSS_SELECTOR, "td.number:nth-of-type(4)").text == "0")


@pytest.mark.parametrize("address", ["#/queue/%", "#/queue/%2F/%", "#/queue/%/x", "#/%", "#/queue/a/b/c"])
def test_an_address_that_is_none_is_no_error(browser: Browser, address: str) -> None:
    browser.execute_script(f"location.hash = '{address}'")
    browser.refresh()
    waited(browser, "h2")
    if address.count("/") != 3 or address.endswith("c"):
        waited(browser, "tbody th", "jobs")
