"""``gunicorn -w 2 django_app:application``: a project in one file."""

import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

import warren

settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SECRET_KEY", "of an example"),
)
node = warren.open(os.environ["DATA"], share=True)  # in a project: in a module of its own
mails = node.queue("mails")


def send(request: HttpRequest) -> HttpResponse:
    body = request.body
    with transaction.atomic():
        transaction.on_commit(lambda: mails.publish(body, timeout=5).wait(timeout=5))
    return HttpResponse(status=202)


urlpatterns = [path("mails", send)]
application = get_wsgi_application()
