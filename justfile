# The commands of development. `just --list` shows them; `.ci/run` calls the same ones.

# Show the commands.
default:
    @just --list

# Style, spelling, plain words in the pages, and the layers.
lint:
    ruff check .
    ruff format --check .
    codespell
    python scripts/check_prose.py
    lint-imports

# Unclear phrases in the pages, the package and its generated pages.
prose:
    python scripts/check_prose.py --all

# Types of the package, the scripts, the benchmarks and the tests.
types:
    mypy

# The fast tests: under a minute on two cores.
test-fast *args:
    pytest -m fast -n 2 {{ args }}

# The tests of one room (`just test store`), or all tests but those marked slow.
test room="" *args:
    pytest -n 2 --dist loadfile --no-loadscope-reorder tests/{{ room }} {{ args }}

# The tests marked slow.
slow *args:
    pytest --slow -m slow {{ args }}

# Check that the generated pages are up to date, and build the site.
docs site="site":
    python scripts/write_command_reference.py --check
    python scripts/write_recipe_schema.py --check
    python scripts/write_api_reference.py --check
    python -m scripts.write_scale --check
    mkdir -p {{ site }}
    cp -r mkdocs.yml docs {{ site }}
    cd {{ site }} && zensical build --strict

# Write the generated pages again.
pages:
    python scripts/write_command_reference.py
    python scripts/write_recipe_schema.py
    python scripts/write_api_reference.py
    python -m scripts.write_scale
    python scripts/write_screens.py

# Everything that a change has to pass, in a fresh environment.
check:
    bash .ci/run
