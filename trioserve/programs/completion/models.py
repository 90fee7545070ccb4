"""The part of a script that lists cached models, for shells of Bourne's kind.

It reads the names of folders alone, so it takes milliseconds. `trioserve models` looks into
the folders, too.
"""

# {layout} is the folder of the cache's entries. A wheel's entry is NAME/VERSION, beside its
# lock and perhaps an unfinished VERSION.part. A repository is models--ORG--NAME. No name on
# the hub has two dashes together.
LIST_MODELS = """\
    local caches=${{XDG_CACHE_HOME:-$HOME/.cache}}
    local wheels=$caches/trioserve/{layout}/wheels
    local hub=${{HF_HUB_CACHE:-${{HF_HOME:-$caches/huggingface}}/hub}}
    local entry name
    for entry in "$wheels"/*/*/{glob}; do
        name=${{entry#"$wheels"/}}; name=${{name%/}}
        case $name in *'*'* | *.part) continue;; esac
        {add} "pypi:${{name%%/*}}==${{name#*/}}"{end}
    done
    for entry in "$hub"/models--*/{glob}; do
        name=${{entry#"$hub"/models--}}; name=${{name%/}}
        case $name in *'*'*) continue;; esac
        {add} "${{name/--//}}"{end}
    done
"""
