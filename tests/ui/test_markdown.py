"""The answers of models as nodes: their forms, and the work for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trioserve.testing.server import FakeServer

from .conftest import SECONDS, wait_for, watch_pages

# A model may write anything, and much of it.
LENGTH = 200_000
LINE = 1_000_000

# Texts that begin a construct and do not end it, and others that are slow for patterns that
# read a part again and again.
HOSTILE = {
    "blanks in a heading": "# a" + " " * LINE + "b",
    "hashes in a heading": "# " + "#" * LINE + "x",
    "blanks in an item": "- " + " " * LINE + "\u2028x",
    "blanks below a head": "a|b\n-|" + " " * LINE + "x",
    "blanks in a rule": "-" + " " * LINE + "-x",
    "marks of rules": "- " * (LINE // 2) + "x",
    "one long item": "- " + "a" * (LENGTH // 2) + "\nb" * (LENGTH // 4),
    "items": "- a\n\n" * (LENGTH // 5),
    "nested items": "\n".join(" " * (2 * i) + "- a" for i in range(440)),
    "quotes": "> a\n" * (LENGTH // 4),
    "nested quotes": ">" * LENGTH,
    "rows": "a|b\n-|-\n" + "|x\n" * (LENGTH // 3),
    "heads": "a|b\n-|-\n\n" * (LENGTH // 9),
    "one long row": "a|b\n-|-\n" + "|" * LENGTH,
    "blocks of code": "```\n" * (LENGTH // 4),
    "a long fence": "`" * (LENGTH // 2) + "\n" + "```\n" * (LENGTH // 8),
    "lines in a long fence": "~" * 1000 + "\n" + ("~" * 999 + "\n") * (LENGTH // 1000),
    "backticks": "`" * LINE + "x",
    "runs of backticks": "".join("`" * i + " " for i in range(630)),
    "code": "`a " * (LENGTH // 3),
    "stars": "*" * LINE,
    "emphasis": "*a* " * (LENGTH // 4),
    "beginnings of emphasis": "*a _b **c __d " * (LENGTH // 14),
    "ends of emphasis": "a* b_ c** d__ " * (LENGTH // 14),
    "brackets": "[" * LINE + "](https://a.example",
    "targets": "[a](" * (LENGTH // 4),
    "titles": '[a](b "c' * (LENGTH // 8),
    "links": "[[a](https://a.example)" * (LENGTH // 23),
    "schemes": "https://" * (LINE // 8),
    "ends of an address": "https://a" + "." * LINE,
    "backslashes": "\\" * LENGTH,
    "tildes": "~" * LINE,
    "ends of strikes": "~~a" * (LENGTH // 3),
    "dollars": "$" * LINE,
    "prices": "$a " * (LENGTH // 3),
    "pairs of dollars": "a$$ " * (LENGTH // 4),
    "beginnings of formulas": "\\(" * (LENGTH // 2) + "\n" + "\\[a" * (LENGTH // 3),
    "formulas without an end": "$$a\n\n" * (LENGTH // 5),
    "images": "![" * (LENGTH // 2) + "](data:image/png;base64," + "A" * (LENGTH // 2),
    "tasks": "- [ ] a\n" * (LENGTH // 8),
    "bars": "a|b\n-|-\n" + "\\|" * (LENGTH // 2),
}

# A picture of one pixel.
DOT = "R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw=="

# Parts of Markdown; a text of some of them has no meaning.
PARTS = (
    [
        "\n",
        "\n",
        "\n\n",
        " ",
        "  ",
        "a",
        "b c",
        "1",
        ". ",
        "- ",
        "1. ",
        "# ",
        "> ",
        "---",
    ]
    + ["*", "**", "_", "`", "```", "```py", "~~~", "[a](https://b.example)", "|", "-|-"]
    + ["\r\n", "\\*", "https://c.example/d_e."]
    + [
        "$",
        "$$",
        "\\(",
        "\\[",
        "\\]",
        "~~",
        "![",
        "](data:image/gif;base64,AA==)",
        "[x] ",
    ]
)


@pytest.fixture(scope="module")
def page(server: FakeServer, browser: Any, usual: Any) -> Iterator[Any]:
    """A page for all tests of this file, which put nothing into it."""
    with watch_pages(browser, usual) as open_page:
        yield open_page(server.url)


def render(page: Any, text: str) -> str:
    return str(
        page.evaluate(
            """text => {
                const root = document.createElement("div");
                new Markdown(root).show(text);
                return root.innerHTML;
            }""",
            text,
        )
    )


@pytest.mark.parametrize(
    "text, html",
    [
        ("# One\ntwo", "<h4>One</h4><p>two</p>"),
        ("### About C# ##", "<h5>About C#</h5>"),
        ("# C#", "<h4>C#</h4>"),
        ("**a** *b* __c__ _d_ `<b>`", "<p><strong>a</strong> <em>b</em> "
         "<strong>c</strong> <em>d</em> <code>&lt;b&gt;</code></p>"),
        ("***a** b*", "<p><em><strong>a</strong> b</em></p>"),
        ("a_b_c __init__.py 2 * 3 * 4", "<p>a_b_c <strong>init</strong>.py 2 * 3 * 4</p>"),
        ("*a **b* \\*c\\*", "<p><em>a **b</em> *c*</p>"),
        ("`` a`b `` ```c```", "<p><code>a`b</code> <code>c</code></p>"),
        ("1. a\n   - b\n\n2. c\nd", '<ol start="1"><li>a<ul><li>b</li></ul></li>'
         "<li>c\nd</li></ol>"),
        ("- a\n\nb\n- \n- \n- ", "<ul><li>a</li></ul><p>b</p>"
         "<ul><li></li><li></li><li></li></ul>"),
        ("- a\n- b\n\n1. c\n2. d", '<ul><li>a</li><li>b</li></ul><ol start="1"><li>c</li>'
         "<li>d</li></ol>"),
        ("1. a\n- b\n  1. c\n  - d\n- e", '<ol start="1"><li>a</li></ol><ul><li>b<ol start="1">'
         "<li>c</li></ol><ul><li>d</li></ul></li><li>e</li></ul>"),
        ("> a\n> - b\n>> c", "<blockquote><p>a</p><ul><li>b</li></ul>"
         "<blockquote><p>c</p></blockquote></blockquote>"),
        ("a\n---\nb\n* * *", "<p>a</p><hr><p>b</p><hr>"),
        ("~~a *b*~~ ~c~ ~~~ d~~ e ~~f", "<p><del>a <em>b</em></del> ~c~ ~~~ d~~ e ~~f</p>"),
        ("- [x] a\n- [ ] *b*\n- [c] d", '<ul><li class="task-item"><input type="checkbox" '
         'disabled="" aria-label="Done"> a</li><li class="task-item"><input type="checkbox" '
         'disabled="" aria-label="Not done"> <em>b</em></li><li>[c] d</li></ul>'),
        ("a $x_1$ $5 $6, $5-$6 \\(y\\) \\(z $$u$$ $ v$", '<p>a <span class="formula"><code>x_1'
         '</code></span> $5 $6, $5-$6 <span class="formula"><code>y</code></span> (z '
         '<span class="formula"><code>u</code></span> $ v$</p>'),
        ("a\n$$\nx\n$$\n$$y$$\n\\[z\n\\]\n$$$\n$$b$$ c", '<p>a</p><div class="formula">'
         '<code>x</code></div><div class="formula"><code>y</code></div><div class="formula"><code>z'
         '</code></div><p>$$$\n<span class="formula"><code>b</code></span> c</p>'),
        ("$$\nx\n\n*a*", '<div class="formula"><code>\nx</code></div><p><em>a</em></p>'),
    ],
)  # fmt: skip
def test_markdown_becomes_nodes(page: Any, text: str, html: str) -> None:
    assert render(page, text) == html


def test_code_keeps_its_lines(page: Any) -> None:
    code = "```python\nx = 1\n\n# no heading\n```"
    assert "<code>x = 1\n\n# no heading</code>" in render(page, code)
    # Inside an item, it is indented as a whole.
    inside = render(page, "1. a\n   ~~~\n   x:\n     y\n   ~~~\n2. b")
    assert "<code>x:\n  y</code>" in inside and '<ol start="2">' in inside
    # It may end in the middle of an answer.
    assert "<code>x\n`</code>" in render(page, "```\nx\n`")


def test_a_table_has_a_head(page: Any) -> None:
    table = render(page, "Two:\n| a | *b* |\n|---|:-:|\n| 1 | 2 |\n\nend")
    assert table.startswith("<p>Two:</p>") and table.endswith("<p>end</p>")
    assert '<th>a</th><th class="center"><em>b</em></th>' in table
    assert '<tbody><tr><td>1</td><td class="center">2</td></tr></tbody>' in table
    table = render(page, "a|b \\| `c`|d\n:-|:-:|-:\n1|2|3")
    assert (
        '<th>a</th><th class="center">b | <code>c</code></th><th class="right">d</th>'
        in table
    )
    assert '<td>1</td><td class="center">2</td><td class="right">3</td>' in table


def test_links_lead_out_of_the_page_alone(page: Any) -> None:
    hostile = render(
        page,
        "<script>alert(1)</script> <img src=x onerror=alert(1)>\n\n"
        "[a](javascript:alert(1)) [b](data:text/html,x) [c](/v1/models) "
        "[d](http:docs)",
    )
    assert "<script" not in hostile and "<img" not in hostile and "<a " not in hostile
    link = '<a href="{}" target="_blank" rel="noopener noreferrer nofollow">{}</a>'
    text = '[*c*](https://c.example/x_(y) "T") (see https://d.example/e_f.) **https://g.example**'
    assert render(page, text) == (
        f'<p>{link.format("https://c.example/x_(y)", "<em>c</em>")} '
        f'(see {link.format("https://d.example/e_f", "https://d.example/e_f")}.) '
        f'<strong>{link.format("https://g.example", "https://g.example")}</strong></p>'
    )


def test_an_image_is_loaded_from_the_message_alone(page: Any) -> None:
    source = f"data:image/gif;base64,{DOT}"
    assert render(page, f"![a *b*]({source})") == (
        f'<p><img src="{source}" alt="a *b*"></p>'
    )
    other = render(page, '![a](https://b.example/c.png "d") ![](/e) ![f]')
    assert "<img" not in other
    assert '<a href="https://b.example/c.png"' in other
    assert ">a</a>" in other and "an image of another server, not loaded" in other
    # Others are not shown: a page of HTML is no image, and a drawing can hang the browser.
    for kind in ("text/html", "image/svg+xml"):
        assert "<img" not in render(page, f"![a](data:{kind};base64,{DOT})"), kind


def test_what_costs_much_is_drawn_up_to_a_number(page: Any) -> None:
    part = "$a_1$ *b*\n\n```py\nc\n```\n\nd|e\n-|-\n\n$$f$$\n\n"
    for _ in range(2):
        numbers = page.evaluate(
            """([part, n]) => {
                const root = document.createElement("div");
                const markdown = new Markdown(root), text = part.repeat(n);
                for (let i = 1; i <= 7; i++) markdown.show(text.slice(0, text.length * i / 7));
                const count = (names) => root.querySelectorAll(names).length;
                return [count(".formula, .code, .scroller"), count("em"), count("table"),
                    root.textContent.split("a_1").length - 1, count("pre"),
                    root.lastElementChild.outerHTML];
            }""",
            [part, 500],
        )
        # All of the text is there, and the next message begins anew.
        assert numbers == [1000, 500, 250, 500, 500, "<p>$$f$$</p>"]


def show(page: Any, text: str) -> None:
    """Show a text in the page itself, where code and formulas are drawn."""
    page.evaluate(
        """text => {
            document.querySelector("#drawn")?.remove();
            const root = make("div", {id: "drawn", className: "text"});
            byId("messages").append(root);
            globalThis.growing = new Markdown(root);
            growing.show(text);
        }""",
        text,
    )


def test_code_and_formulas_are_drawn_by_libraries_that_come_when_they_are_needed(
    server: FakeServer, open_page: Callable[..., Any]
) -> None:
    page = open_page(server.url)
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url.rsplit("/", 1)[1]))
    show(page, "*a*\n\n```\nno language\n```\n\n$5")
    page.evaluate("new Promise(requestAnimationFrame)")
    assert not [each for each in asked if each.startswith(("highlight", "temml"))]
    code = "def f(x):\n    return '<b>' # one\n"
    show(page, f"```python\n{code}")
    page.evaluate("new Promise(requestAnimationFrame)")
    # It is coloured once, when it is complete.
    assert "highlight.min.js" not in asked
    page.evaluate(
        "text => growing.show(text)", f"```python\n{code}```\n\n```nothing\na\n```"
    )
    page.wait_for_selector("#drawn .token.keyword")
    assert page.locator("#drawn pre code").nth(0).text_content() == code.rstrip("\n")
    assert page.locator("#drawn .token.string").inner_text() == "'<b>'"
    assert page.locator("#drawn pre code").nth(1).locator(".token").count() == 0
    assert "temml.min.js" not in asked
    # The last ones are attributes of style in Temml, links, and unknown to it.
    text = r"$x^2$ $\pmb{y}$ $\href{https://a.example}{z}$ $\no{u}$"
    show(page, text)
    page.wait_for_selector("#drawn math")
    wait_for(
        page, "document.querySelectorAll('#drawn math').length === 2 && !waiting.length"
    )
    assert page.locator("#drawn msup").count() == 1
    bold = page.locator("#drawn mstyle").evaluate("each => each.style.fontWeight")
    assert bold == "bold"
    assert page.locator("#drawn code").all_inner_texts() == [
        r"\href{https://a.example}{z}",
        r"\no{u}",
    ]
    assert sorted(
        each for each in asked if each.startswith(("highlight", "temml"))
    ) == [
        "highlight.min.js",
        "temml.css",
        "temml.min.js",
    ]
    wait_for(page, "document.adoptedStyleSheets.length === 1")
    # Shown again, they come at once.
    page.evaluate("text => growing.show(text + ' more')", text)
    assert page.locator("#drawn math").count() == 2
    # While an answer grows, each formula is drawn once.
    page.evaluate("""async () => {
            const temml = await loading.temml, draw = temml.__renderToMathMLTree;
            globalThis.numDrawn = 0;
            temml.__renderToMathMLTree = (...given) => { numDrawn++; return draw(...given); };
            const text = "$z^3$ and $z^3$ and $z^4$, which grows on";
            growing.show("");
            for (let i = 1; i <= text.length; i++) {
                growing.show(text.slice(0, i));
                if (i % 8 === 0) await new Promise(requestAnimationFrame);
            }
        }""")
    wait_for(page, "document.querySelectorAll('#drawn math').length === 3")
    assert page.evaluate("numDrawn") == 2


# Counts the characters that the browser's own functions read: of a pattern that matches from
# a place on, as many as it has matched, and otherwise all that it was given.
COUNT_CHARACTERS = """() => {
    globalThis.numRead = 0;
    const count = (type, name, weigh) => {
        const original = type[name];
        type[name] = function (...given) {
            const from = this.lastIndex, result = original.apply(this, given);
            numRead += weigh(this, given, result, from);
            return result;
        };
    };
    for (const name of ["split", "trim", "trimStart", "trimEnd", "includes"]) {
        count(String.prototype, name, (text) => text.length);
    }
    count(String.prototype, "indexOf", (text, [, from = 0], found) =>
        (found < 0 ? text.length : found) - from);
    count(String.prototype, "repeat", (text, given, result) => result.length);
    count(Array.prototype, "join", (list, given, result) => result.length);
    count(RegExp.prototype, "exec", (pattern, [text], found, from) =>
        !pattern.sticky && !pattern.global ? text.length
            : found ? pattern.lastIndex - from : pattern.sticky ? 1 : text.length - from);
}"""


@pytest.fixture(scope="module")
def counted(page: Any) -> Iterator[Any]:
    """A session with Chromium, which counts how often each block of code is entered."""
    session = page.context.new_cdp_session(page)
    session.send("Profiler.enable")
    counting = {"callCount": True, "detailed": True}
    session.send("Profiler.startPreciseCoverage", counting)
    # It counts in code that was not compiled before.
    page.reload()
    wait_for(page, "server.model")
    page.evaluate(COUNT_CHARACTERS)
    yield session
    session.send("Profiler.disable")


def count_steps(page: Any, session: Any, program: str, text: str) -> float:
    """Run a program of the page with a text, and return the steps for each character of it.

    A step is a block of code that is entered, or a character that a function of the browser
    reads. A pattern that reads a part again and again ends by the time limit.
    """
    page.evaluate("text => { globalThis.text = text; numRead = 0; }", text)
    session.send("Profiler.takePreciseCoverage")
    options = {"expression": f"{{ {program} }} numRead", "timeout": 1000 * SECONDS}
    num_read = session.send("Runtime.evaluate", options)["result"]["value"]
    num_entered = sum(
        part["count"]
        for script in session.send("Profiler.takePreciseCoverage")["result"]
        if script["url"] == page.url
        for function in script["functions"]
        for part in function["ranges"]
    )
    return (num_read + num_entered) / len(text)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_work_for_a_text_grows_as_its_length(
    page: Any, counted: Any, name: str
) -> None:
    text = HOSTILE[name]
    program = "new Markdown(document.createElement('div')).show(text);"
    assert 1 < count_steps(page, counted, program, text) < 100


def test_a_stream_builds_what_is_new(page: Any, counted: Any) -> None:
    text = "Some *words* of an answer.\n\n- One\n- Two\n\n```\ncode\n```\n\n" * 500
    program = """
        const markdown = new Markdown(document.createElement("div"));
        for (let i = 0; i <= text.length; i += 10) markdown.show(text.slice(0, i));
    """
    # Ten characters come at once, and two blocks are built again for them.
    assert 1 < count_steps(page, counted, program, text) < 100


def test_a_text_is_the_same_however_it_is_cut(page: Any) -> None:
    wrong = page.evaluate(
        """parts => {
            let seed = 1;
            const draw = (n) => (seed = seed * 48271 % 2147483647) % n;
            const [one, other] = [0, 1].map(() => document.createElement("div"));
            for (let k = 0; k < 300; k++) {
                const text = Array.from({length: 24}, () => parts[draw(parts.length)]).join("");
                const markdown = new Markdown(one);
                one.replaceChildren();
                other.replaceChildren();
                for (let i = 1; i <= text.length; i++) markdown.show(text.slice(0, i));
                new Markdown(other).show(text);
                if (one.innerHTML !== other.innerHTML) return text;
            }
        }""",
        PARTS,
    )
    assert wrong is None
