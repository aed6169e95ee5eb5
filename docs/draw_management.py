"""Take docs/management*.png: the management page of a node that really runs, in a real browser (chromium, selenium).

python docs/draw_management.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pika
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import warren
from warren.management import ManagementSettings
from warren.server import ServerSettings

OUT: Final = Path(__file__).parent
WIDTH: Final = 1200
PADDING: Final = "." * 900
WAIT_S: Final = 20.0


@contextmanager
def chromium(width: int = WIDTH, height: int = 900, *, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """A browser without a window."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        yield browser
    finally:
        browser.quit()


def log_in(
    browser: webdriver.Chrome, url: str, user: str = "guest", password: str = "guest", *, view: str = "overview"
) -> None:
    """To a view of the page at ``url``."""
    browser.get("about:blank")  # else a new part after "#" loads nothing
    browser.get(f"{url}#/{view}")
    waited(browser, "form.login")
    browser.find_element(By.NAME, "username").send_keys(user)
    browser.find_element(By.NAME, "password").send_keys(password)
    browser.find_element(By.CSS_SELECTOR, "form.login button").click()


def waited(browser: webdriver.Chrome, selector: str, text: str = "") -> Any:
    """The first element of a selector that has a text, once it is there."""

    def found(_: webdriver.Chrome) -> Any:
        matching = [one for one in browser.find_elements(By.CSS_SELECTOR, selector) if text in one.text]
        return matching[0] if matching else False

    return WebDriverWait(browser, WAIT_S, poll_frequency=0.05, ignored_exceptions=[Exception]).until(found)


def orders_of(first: int, count: int) -> list[bytes]:
    """Bodies of about a kilobyte."""
    return [
        json.dumps({"order": number, "items": number % 7 + 1, "note": PADDING}).encode()
        for number in range(first, first + count)
    ]


def fill(node: warren.Node, stopping: threading.Event) -> None:
    """Queues that fall behind, one that keeps up, some at rest; until told to stop."""
    night = node.queue("nightly-report")
    night.set_mode("lazy")
    night.publish_many(orders_of(0, 3000)).wait()
    orders, emails, thumbnails = (node.queue(name) for name in ("orders", "emails", "thumbnails"))
    node.exchange("events", "topic")
    node.bind("orders", "events", "order.#")
    thumbnails.publish_many(orders_of(0, 9000)).wait()
    orders.publish_many(orders_of(10_000, 30_000), content_type="application/json", headers={"shop": "Bonn"}).wait()
    busy = orders.consume(prefetch=200)
    number = 40_000
    while not stopping.wait(0.05):
        orders.publish_many(orders_of(number, 20), content_type="application/json", headers={"shop": "Bonn"})
        number += 20
        for _ in range(10):
            if (delivery := busy.receive(0)) is not None:
                delivery.ack()
        emails.publish_many(orders_of(number, 20))
        emails.ack(emails.get_many(20))


def main() -> None:
    settings: dict[str, Any] = {
        "vm_memory_calculation_strategy": "allocated",
        "vm_memory_high_watermark": 60_000_000,
        "memory_monitor_interval": 250,
        "queue_ram_report_interval_ms": 250,
        "hibernate_after_ms": 200,
    }
    stopping = threading.Event()
    with tempfile.TemporaryDirectory() as directory, warren.open(f"{directory}/data", **settings) as node:
        server = node.serve(ServerSettings(port=0, management=ManagementSettings(management_tcp_port=0)))
        assert server.management is not None
        node.queue("returns")
        filler = threading.Thread(target=fill, args=(node, stopping))
        filler.start()
        clients = [_client(server.addresses[0][1], name) for name in ("shop frontend", "mailer", "thumbnailer")]
        try:
            time.sleep(4)
            _pictures(server.management.url)
        finally:
            stopping.set()
            filler.join()
            for client in clients:
                client.close()


def _client(port: int, name: str) -> pika.BlockingConnection:
    parameters = pika.ConnectionParameters("127.0.0.1", port, client_properties={"connection_name": name}, heartbeat=0)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume("returns", lambda *_: None)
    return connection


def _pictures(url: str) -> None:
    with chromium(height=700, dark=True) as browser:
        log_in(browser, url)
        waited(browser, "tbody th", "amqp")
        browser.execute_script("""const choice = document.querySelector('main select');
            choice.value = 'minute'; choice.dispatchEvent(new Event('change'))""")
        time.sleep(20)
        browser.save_screenshot(str(OUT / "management.png"))
    with chromium(height=700) as browser:
        log_in(browser, url, view="queues")
        waited(browser, "tbody th", "orders")
        time.sleep(3)
        browser.save_screenshot(str(OUT / "management-queues.png"))
    with chromium(height=1100) as browser:
        log_in(browser, url, view="queue/%2F/orders")
        waited(browser, "button", "Browse").click()
        waited(browser, "summary")
        time.sleep(6)
        browser.find_element(By.CSS_SELECTOR, "summary").click()
        browser.save_screenshot(str(OUT / "management-queue.png"))
    if sys.platform == "linux" and (optimizer := _which("pngquant")):
        for path in OUT.glob("management*.png"):
            subprocess.run([optimizer, "--force", "--ext", ".png", "--skip-if-larger", str(path)], check=False)


def _which(name: str) -> str | None:
    import shutil

    return shutil.which(name)


if __name__ == "__main__":
    main()
