"""The files of the pages: public, cached by tag, locked down, switched off by a flag."""

import re
from pathlib import Path

import pytest
from fake_stack import FakeStack, app_of, call, error_of

from xllm.entrypoints.http import bundle
from xllm.entrypoints.http.bundle import Bundle

FOLDER = Path(bundle.__file__).with_name("web")
PAGES = ("/", "/dashboard")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_needs_no_key_and_runs_only_its_own_scripts(path: str) -> None:
    response = call(app_of(FakeStack(), api_key=["sk"]), "GET", path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy
    assert "unsafe" not in policy and "http" not in policy
    # The policy would block them: no inline script, style or handler.
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", response.text)


@pytest.mark.parametrize("path", PAGES)
def test_everything_that_a_page_names_is_there(path: str) -> None:
    app = app_of(FakeStack())
    todo, seen = [call(app, "GET", path).text], set()
    while todo:
        text = todo.pop()
        names = re.findall(r'(?:src|href)="(web/[^"]+)"', text)
        names += ["web/js/" + n for n in re.findall(r'from "\./([\w.]+)"', text)]
        names += ["web/vendor/" + n for n in re.findall(r'from "\.\./vendor/([\w.]+)"', text)]
        for name in set(names) - seen:
            seen.add(name)
            response = call(app, "GET", f"/{name}")
            assert response.status_code == 200, name
            if "/js/" in name:
                assert response.headers["content-type"].startswith("text/javascript")
                todo.append(response.text)
    assert {"web/js/theme.js", "web/css/base.css", "web/js/dom.js"} <= seen


def test_the_page_knows_the_tasks_that_are_no_chat_and_names_routes_that_exist() -> None:
    script = (FOLDER / "js" / "chat.js").read_text()
    tasks = re.search(r"const OTHER_TASKS = \{(.*?)\n\};", script, re.DOTALL)
    assert tasks
    others = ["generate", "embed", "classify"]
    assert re.findall(r"^  (\w+):", tasks[1], re.MULTILINE) == others
    named = set(re.findall(r"/v1/\w+", tasks[1]))
    assert len(named) == 5
    assert named <= {route.path for route in app_of(FakeStack()).state.routes}


def test_a_known_tag_is_answered_without_the_file() -> None:
    app = app_of(FakeStack())
    first = call(app, "GET", "/web/js/chat.js")
    tag = first.headers["etag"]
    for sent in (tag, f'"other", W/{tag}'):
        again = call(app, "GET", "/web/js/chat.js", headers={"If-None-Match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    other = call(app, "GET", "/web/js/chat.js", headers={"If-None-Match": '"other"'})
    assert other.content == first.content
    assert other.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "js/../../app.py", "", "js", "x.js"])
def test_only_files_of_the_bundle_are_served(name: str) -> None:
    response = call(app_of(FakeStack()), "GET", f"/web/{name}")
    assert response.status_code == 404
    error_of(response)


def test_the_flag_switches_the_pages_off() -> None:
    app = app_of(FakeStack(), enable_web=False)
    for path in (*PAGES, "/web/js/chat.js"):
        assert call(app, "GET", path).status_code == 404
    assert call(app, "GET", "/health").status_code == 200


def test_no_file_names_another_host_to_fetch_from() -> None:
    served = Bundle()
    own = [p for p in FOLDER.rglob("*") if p.is_file() and p.parent.name != "vendor"]
    assert len(own) > 10
    for path in own:
        assert path.relative_to(FOLDER).as_posix() in served
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn", text), path


def test_every_third_party_file_has_its_licence_and_its_version_in_the_readme() -> None:
    vendor = FOLDER / "vendor"
    readme = (vendor / "README.md").read_text()
    for path in vendor.glob("*.js"):
        assert path.with_suffix(".LICENSE").read_text().strip()
        row = next(line for line in readme.splitlines() if f"`{path.name}`" in line)
        version = re.search(r"\d+\.\d+\.\d+", path.read_text()[:300])
        assert version and version.group() in row
