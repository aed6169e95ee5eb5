"""``gunicorn -w 2 flask_app:app``"""

import os

from flask import Flask, Response, request

import warren

app = Flask(__name__)
node = warren.open(os.environ["DATA"], share=True)
mails = node.queue("mails")


@app.post("/mails")
def send() -> Response:
    try:
        mails.publish(request.get_data(), timeout=5).wait(timeout=5)  # on the disk now
    except (warren.errors.BlockedError, TimeoutError):
        return Response("try again", status=503, headers={"Retry-After": "5"})
    return Response(status=202)
