"""Serves a language model from several devices or machines behind one address that speaks OpenAI's protocol: an application for Ray Serve,
each of whose replicas runs `wgfc api`.

    pip install "ray[serve]" aiohttp
    python examples/ray_serve.py model.gguf --replicas 2 --port 8000 -- --batch 32 --precision f16
    python examples/ray_serve.py model.gguf --replicas 4 --resources '{"gpu_slot": 1}' -- --cache q8

Options behind `--` are those of `wgfc api`; the model must be at the same path on each machine of the cluster. A request goes to the replica
with the fewest under way and is streamed through; when a client goes away, its sequence ends. A replica whose server does not answer is
started again. The header `x-replica` of an answer names the replica.

Other programs of the cluster deploy it with `serve.run(application("model.gguf", replicas=2))`."""

import argparse
import json
import re
import shutil
import subprocess
import threading
import time

import aiohttp
import fastapi
from fastapi.responses import Response, StreamingResponse
from ray import serve

# Seconds that a server may take to load its model.
START = 600
# Headers that concern one connection.
OWN_HEADERS = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}

app = fastapi.FastAPI(openapi_url=None)


@serve.deployment
@serve.ingress(app)
class Replica:
    """A server on one adapter."""

    def __init__(self, model, options, program):
        self.name = serve.get_replica_context().replica_id.unique_id
        command = [program, "api", model, "--host", "127.0.0.1", "--port", "0", *options]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said, self.url, ready = [], None, threading.Event()

        def listen():
            for line in self.server.stdout:
                self.said = [*self.said[-20:], line.rstrip()]
                address = re.search(r"http://127\.0\.0\.1:\d+", line)
                if self.url is None and address:
                    self.url = address[0]
                    ready.set()
            ready.set()

        threading.Thread(target=listen, daemon=True).start()
        ready.wait(START)
        if self.url is None:
            self.server.kill()
            raise RuntimeError("the server did not start:\n" + "\n".join(self.said))
        self.session = None

    def __del__(self):
        if hasattr(self, "server"):
            self.server.terminate()

    def check_health(self):
        if self.server.poll() is not None:
            raise RuntimeError("the server has ended:\n" + "\n".join(self.said))

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def forward(self, path: str, request: fastapi.Request):
        if self.session is None:
            self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        headers = {k: v for k, v in request.headers.items() if k.lower() not in OWN_HEADERS}
        url = f"{self.url}/{path}"
        try:
            answer = await self.session.request(request.method, url, data=await request.body(), headers=headers)
        except aiohttp.ClientError as e:
            error = {"error": {"message": f"the replica's server does not answer: {e}", "type": "server_error"}}
            return Response(json.dumps(error), 503, media_type="application/json")
        own = {k: v for k, v in answer.headers.items() if k.lower() not in OWN_HEADERS}
        own["x-replica"] = self.name

        async def parts():
            # Closed when the client goes away, which ends the sequence.
            try:
                async for part in answer.content.iter_any():
                    yield part
            finally:
                answer.close()

        return StreamingResponse(parts(), answer.status, own)


def application(model, options=(), *, replicas=1, resources=None, at_once=64, program="wgfc"):
    """The application. `resources` are what Ray reserves for a replica, `at_once` the requests that a replica takes at a time."""
    found = shutil.which(program)
    if found is None:
        raise SystemExit(f"{program}: no such program; name it with --program")
    actor = {"resources": resources} if resources else {}
    deployment = Replica.options(
        num_replicas=replicas, max_ongoing_requests=at_once, health_check_period_s=2, ray_actor_options=actor
    )
    return deployment.bind(model, list(options), found)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--replicas", type=int, default=1)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--resources", type=json.loads, help="what Ray reserves for a replica, as JSON")
    p.add_argument("--at-once", type=int, default=64, help="requests that a replica takes at a time")
    p.add_argument("--program", default="wgfc")
    p.add_argument("options", nargs="*", help="options of `wgfc api`, behind --")
    a = p.parse_args()
    serve.start(http_options={"host": a.host, "port": a.port})
    what = application(
        a.model, a.options, replicas=a.replicas, resources=a.resources, at_once=a.at_once, program=a.program
    )
    serve.run(what)
    print(f"http://{a.host}:{a.port}/v1", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        serve.shutdown()


if __name__ == "__main__":
    main()
