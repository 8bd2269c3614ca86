"""The commands of the pages on Django and Celery print what the pages say: in one shell, with the real frameworks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.docs.test_engine_pages import type_page
from tests.servers.process import free_port

IN_ONE_COMMIT = """
import os
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["NAME"],
                           "USER": os.environ["USER_NAME"], "HOST": os.environ["HOST"]}},
)
django.setup()
from django.db import connection, models, transaction
from amends import Runtime, tool

class Order(models.Model):
    id = models.CharField(primary_key=True, max_length=20)
    class Meta:
        app_label = "shop"

@tool
def place(id: str) -> str:
    Order.objects.create(id=id)
    return id

@place.compensate
def cancel(id: str) -> None:
    Order.objects.filter(id=id).delete()

with Runtime(os.environ["URL"], tools=[place]) as rt, rt.run("one") as run:
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    for fails in (True, False):
        try:
            with transaction.atomic():
                Order.objects.count()
                place.with_options(connection=connection.connection)(id="1")
                if fails:
                    raise ValueError
        except ValueError:
            pass
        print(Order.objects.count(), [call.state for call in run.report().calls])
"""


@pytest.mark.rest
@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("CI"), reason="needs curl")
def test_the_commands_of_the_page_on_django_print_what_it_says(tmp_path: Path) -> None:
    port = free_port()
    type_page("django.md", tmp_path, ports={"8000": port})


def test_a_row_of_django_and_its_record_are_one_commit_on_postgresql(postgres_url: str) -> None:
    facts = conninfo_to_dict(postgres_url)
    names = {"NAME": facts["dbname"], "USER_NAME": facts["user"], "HOST": facts["host"], "URL": postgres_url}
    env = {**os.environ, **{name: str(value) for name, value in names.items()}}
    done = subprocess.run([sys.executable, "-c", IN_ONE_COMMIT], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "0 []\n1 ['succeeded']\n", done.stderr


@pytest.mark.rest
def test_the_commands_of_the_page_on_celery_print_what_it_says(tmp_path: Path) -> None:
    type_page("celery.md", tmp_path, programs={"celery": f'exec "{sys.executable}" -m celery "$@"'})
