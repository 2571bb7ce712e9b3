#!/usr/bin/env python3
"""Opens pages that `quire ... --report` wrote in a headless Chromium, over its own protocol, and looks at them.

    scripts/check-report.py PAGE [JSON] [--pictures FOLDER] [--within SECONDS]
    scripts/check-report.py PAGE --figure NAME --pictures FOLDER

At 1280 and 400 pixels, light and dark: the console stays silent, nothing is fetched, nothing is wider than the window,
no two texts of a picture overlap, each picture has a label and a table, and each number of a table is the one in the
page's data. With JSON, the lines that the same run printed with `--json`, the data are those. --pictures keeps what it
looked like; --within fails if a page takes longer from its opening to its second frame. --figure keeps one picture only,
as it is on a light ground."""

import argparse
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

LOOK = r"""
(async () => {
  const frame = () => new Promise(requestAnimationFrame);
  await frame(); await frame();
  const drawn = performance.now();
  const wrong = [];
  if (document.documentElement.scrollWidth > innerWidth)
    wrong.push(`the page is ${document.documentElement.scrollWidth} pixels wide`);
  const data = JSON.parse(document.getElementById("data").textContent);
  const pictures = data.filter(object => object.picture !== undefined);
  const figures = [...document.querySelectorAll("figure")];
  if (figures.length !== pictures.length || figures.length === 0)
    wrong.push(`${figures.length} figures for ${pictures.length} pictures in the data`);
  let numbers = 0;
  figures.forEach((figure, place) => {
    const picture = pictures[place], name = picture && picture.picture;
    const drawings = [...figure.querySelectorAll("svg[role=img]")].filter(svg => svg.getClientRects().length > 0);
    if (drawings.length !== 1) wrong.push(`${name}: ${drawings.length} drawings are shown`);
    for (const svg of drawings) {
      const labels = svg.getAttribute("aria-labelledby").split(" ").map(id => document.getElementById(id));
      if (labels.length !== 2 || labels.some(label => !label || !label.textContent.trim()))
        wrong.push(`${name}: a label is missing`);
      for (const part of svg.querySelectorAll("[points], [d], [x], [x1]"))
        for (const attribute of part.attributes)
          // An embedded picture is base64, where the letters NaN mean nothing.
          if (attribute.name !== "href" && /NaN|Infinity/.test(attribute.value))
            wrong.push(`${name}: ${attribute.name} is ${attribute.value}`);
      const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
      texts.forEach(([text, box], nth) => {
        if (box.left < -1 || box.right > innerWidth + 1) wrong.push(`${name}: "${text}" is cut off`);
        for (const [other, beside] of texts.slice(nth + 1))
          if (box.left < beside.right - 1 && beside.left < box.right - 1 &&
              box.top < beside.bottom - 3 && beside.top < box.bottom - 3)
            wrong.push(`${name}: "${text}" and "${other}" overlap`);
      });
    }
    const details = figure.querySelector("details");
    const rows = [...figure.querySelectorAll("tbody tr")];
    if (!details || !figure.querySelector("figcaption p") || rows.length !== picture.rows.length)
      wrong.push(`${name}: its table or its explanation is missing`);
    rows.forEach((row, nth) => [...row.cells].forEach((cell, column) => {
      const value = picture.rows[nth][column];
      if (typeof value === "number") {
        numbers += 1;
        if (Number(cell.dataset.value) !== value) wrong.push(`${name}: ${cell.dataset.value} is not ${value}`);
      } else if (cell.dataset.value !== undefined || (value !== null && cell.textContent !== value))
        wrong.push(`${name}: "${cell.textContent}" is not ${value}`);
    }));
    details.open = true;
    details.querySelector(".scroll").focus();
    if (document.activeElement !== details.querySelector(".scroll")) wrong.push(`${name}: no key reaches its table`);
    details.open = false;
  });
  scrollTo(0, 0);
  document.activeElement.blur();
  return { wrong, data, numbers, drawn, pictures: pictures.length };
})()
"""


class Browser:
    """A Chromium that is spoken to over a pipe."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="quire-chromium-")
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
                 f"--user-data-dir={self.profile}", "about:blank"]
        # The browser reads from its descriptor 3 and writes to 4.
        high = [os.dup2(fd, place, inheritable=True) for fd, place in ((to_browser, 103), (from_browser, 104))]
        shell = "exec 3<&103 4>&104 103<&- 104>&-; exec \"$@\""
        self.process = subprocess.Popen(["bash", "-c", shell, "chromium", program, *flags], pass_fds=high,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (to_browser, from_browser, *high):
            os.close(fd)
        self.number, self.buffer, self.events = 0, b"", []

    def message(self):
        while b"\0" not in self.buffer:
            more = os.read(self.read, 1 << 20)
            if not more:
                sys.exit("the browser ended")
            self.buffer += more
        line, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(line)

    def ask(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self.message()
            if reply.get("id") == self.number:
                if "error" in reply:
                    sys.exit(f"{method}: {reply['error']}")
                return reply["result"]
            self.events.append(reply)

    def until(self, method):
        while True:
            for place, event in enumerate(self.events):
                if event.get("method") == method:
                    return self.events.pop(place)
            self.events.append(self.message())

    def close(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


BOX = """(() => {
  const figure = document.querySelector("figure[id^='NAME-']");
  figure.querySelector("details").remove();
  const box = figure.getBoundingClientRect();
  return [box.left + scrollX - 12, box.top + scrollY - 12, box.width + 24, box.height + 24];
})()"""


def open_page(browser, page, width, scheme):
    """A session with the page, when it is loaded."""
    target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.ask(f"{domain}.enable", session)
    browser.ask("Emulation.setDeviceMetricsOverride", session, width=width, height=900, deviceScaleFactor=1,
                mobile=width < 700)
    browser.ask("Emulation.setEmulatedMedia", session, features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.events.clear()
    url = page.resolve().as_uri()
    browser.ask("Page.navigate", session, url=url)
    browser.until("Page.loadEventFired")
    return target, session, url


def keep(browser, session, file, box):
    """Keeps what a part of the page looks like."""
    clip = dict(zip(("x", "y", "width", "height"), box), scale=1)
    shot = browser.ask("Page.captureScreenshot", session, clip=clip, captureBeyondViewport=True)
    file.write_bytes(base64.b64decode(shot["data"]))


def look(browser, page, width, scheme, pictures):
    """What is wrong with a page, and what was found."""
    target, session, url = open_page(browser, page, width, scheme)
    found = browser.ask("Runtime.evaluate", session, expression=LOOK, awaitPromise=True, returnByValue=True)
    if "exceptionDetails" in found:
        sys.exit(f"{page}: {found['exceptionDetails']}")
    found = found["result"]["value"]
    wrong = found["wrong"]
    for event in browser.events:
        method, what = event.get("method"), event.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            wrong.append(f"the console says: {json.dumps(what)[:300]}")
        if method == "Network.requestWillBeSent":
            asked = what["request"]["url"]
            if asked.split("#")[0] != url and not asked.startswith("data:"):
                wrong.append(f"it fetches {asked}")
    if pictures:
        height = browser.ask("Runtime.evaluate", session, expression="document.documentElement.scrollHeight",
                             returnByValue=True)["result"]["value"]
        keep(browser, session, pictures / f"{page.stem}-{width}-{scheme}.png", (0, 0, width, min(height, 16000)))
    browser.ask("Target.closeTarget", targetId=target)
    return wrong, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("json", type=pathlib.Path, nargs="?")
    parser.add_argument("--pictures", type=pathlib.Path)
    parser.add_argument("--within", type=float)
    parser.add_argument("--figure")
    arguments = parser.parse_args()
    program = shutil.which("chromium")
    if not program:
        print("check-report: chromium is missing; install it with:", file=sys.stderr)
        print("    apt-get update && apt-get install -y --no-install-recommends chromium", file=sys.stderr)
        return 2
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    browser, bad = Browser(program), 0
    try:
        if arguments.figure:
            _, session, _ = open_page(browser, arguments.page, 1024, "light")
            box = browser.ask("Runtime.evaluate", session, expression=BOX.replace("NAME", arguments.figure),
                              returnByValue=True)["result"]["value"]
            keep(browser, session, arguments.pictures / f"{arguments.figure}.png", box)
            return 0
        for width in (1280, 400):
            for scheme in ("light", "dark"):
                started = time.monotonic()
                wrong, found = look(browser, arguments.page, width, scheme, arguments.pictures)
                if arguments.json:
                    printed = [json.loads(line) for line in arguments.json.read_text().splitlines() if line]
                    if printed != found["data"]:
                        wrong.append("its data are not what --json printed")
                seconds = found["drawn"] / 1000
                if arguments.within and seconds > arguments.within:
                    wrong.append(f"it took {seconds:.2f} s to be drawn")
                for line in wrong:
                    print(f"{arguments.page}, {width} pixels, {scheme}: {line}", file=sys.stderr)
                bad += len(wrong)
                print(f"{arguments.page}: {width} pixels, {scheme}: {found['pictures']} pictures, {found['numbers']} "
                      f"numbers, drawn in {seconds:.2f} s")
    finally:
        browser.close()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
