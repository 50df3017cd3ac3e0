"""Pages in a headless browser, driven by a script in a page around them."""

import base64
import json
import re
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def in_browser(page: Path, script: str, milliseconds: int = 8000) -> Any:
    """What a script returns that may await; it has the page's ``frame``, ``doc()``, ``text(id)`` and ``loaded()``."""
    harness = f"""<!doctype html><pre id="out"></pre>
<iframe id="f" width="1200" height="800" src="{page.name}"></iframe>
<script>
const frame = document.getElementById("f");
const loaded = () => new Promise((done) => {{ frame.onload = done; }});
const doc = () => frame.contentDocument;
const text = (id) => doc().getElementById(id).textContent;
(async () => {{
  await loaded();
  const found = await (async () => {{ {script} }})();
  const bytes = new TextEncoder().encode(JSON.stringify(found));
  document.getElementById("out").textContent = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  frame.remove();
}})();
</script>"""
    (page.parent / "harness.html").write_text(harness)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(page.parent))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        command += [f"--virtual-time-budget={milliseconds}", f"--user-data-dir={page.parent / 'profile'}"]
        address = f"http://127.0.0.1:{server.server_port}/harness.html"
        done = subprocess.run([*command, address], capture_output=True, text=True, timeout=60)
        server.shutdown()
    out = re.search(r'<pre id="out">([\w+/=]+)</pre>', done.stdout)
    assert out, done.stdout[-500:] + done.stderr[-2000:]
    return json.loads(base64.b64decode(out[1]))
