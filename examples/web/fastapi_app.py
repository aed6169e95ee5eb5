"""``uvicorn --workers 2 fastapi_app:app``"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

import warren.aio


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with warren.aio.open(os.environ["DATA"], share=True) as node:
        app.state.mails = await node.queue("mails")
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/mails", status_code=202)
async def send(request: Request) -> None:
    try:
        await request.app.state.mails.publish(await request.body(), timeout=5)  # on the disk when it returns
    except warren.errors.BlockedError as error:
        raise HTTPException(503, "try again", headers={"Retry-After": "5"}) from error
