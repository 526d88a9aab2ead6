"""What a router is told in confidence does not come out again: not in its log, its events, its figures, its errors."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
from pathlib import Path

import httpx

from chaos.certificates import issue
from shoal.manifest import MANIFEST_FILE
from shoal.plan.document import Plan
from shoal_router.pipeline.fake import planned_at
from shoal_router.text.fake import CHATML, fake_text_model, fake_tokenizer
from shoal_stage.engine.fake import fake_manifest
from shoal_stage.server.fake import fake_pipeline

KEY, WRONG, HASHED = "sk-office-4711-secret", "sk-wrong-0815-secret", "sk-hashed-2342-secret"
TEXT, IDEMPOTENCY = "the salary of everybody", "idem-9000-secret"
VOCAB = fake_text_model().vocab_size


def model_directory(folder: Path) -> Path:
    (folder / "tokenizer").mkdir(parents=True)
    (folder / MANIFEST_FILE).write_bytes(fake_manifest(vocab_size=VOCAB).canonical_json())
    (folder / "tokenizer/tokenizer.json").write_text(fake_tokenizer().to_str())
    (folder / "tokenizer/chat_template.jinja").write_text(CHATML)
    (folder / "tokenizer/generation_config.json").write_text('{"eos_token_id": 2, "transformers_version": "1"}')
    return folder


async def test_neither_keys_nor_texts_nor_private_keys_are_told(tmp_path: Path) -> None:
    pki = issue(tmp_path / "pki")
    keys = tmp_path / "api-keys"
    keys.write_text(f"{KEY}\n")
    async with fake_pipeline(2, tls=pki["stage"], vocab_size=VOCAB) as stages:
        planned = planned_at([each.address for each in stages], [each.blocks for each in stages], None)
        plan = tmp_path / "plan.json"
        plan.write_text(Plan(pipelines=(planned.stages,)).model_dump_json(by_alias=True))
        argv = [
            *("-P", "-m", "shoal_router", f"--plan={plan}", f"--model={model_directory(tmp_path / 'model')}"),
            *("--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--served-name=fake", f"--api-keys={keys}"),
            *(f"--tls-dir={pki['router'].path}", f"--api-tls-dir={pki['router'].path}", "--requests-per-minute=20"),
        ]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=pipe, stderr=pipe)
        try:
            said, answers = await talk(process, pki["router"].path)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
    private = (pki["router"].path / "tls.key").read_text().splitlines()[1]
    for secret in (KEY, WRONG, HASHED, IDEMPOTENCY, TEXT, private):
        assert secret not in said, f"the router's log tells {secret!r}"
        assert secret not in answers, f"an answer of the router tells {secret!r}"
    assert "POST /v1/completions" in said, "there is no log that could tell anything"
    assert process.returncode == 0, said


async def talk(process: asyncio.subprocess.Process, tls: Path) -> tuple[str, str]:
    """Whatever could make a router say too much; what it wrote, and what it answered apart from completions."""
    lines = [await event(process), await event(process)]
    urls = {name: value for line in lines for name, value in line.items() if name in ("url", "metrics")}
    answers, trust = [], ssl.create_default_context(cafile=tls / "ca.crt")
    async with httpx.AsyncClient(verify=trust, base_url=urls["url"], timeout=30) as client:
        for key in (KEY, WRONG, KEY + "x", f"{KEY} {WRONG}", "?"):
            for body in ({"model": "fake", "prompt": TEXT, "max_tokens": 2}, {"model": KEY, "prompt": 5}, {"x": TEXT}):
                headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": IDEMPOTENCY}
                answer = await client.post(f"/v1/completions?api_key={HASHED}", json=body, headers=headers)
                if answer.status_code in (401, 429):
                    answers.append(answer.text)
        answers.append((await client.get("/status", headers={"Authorization": f"Bearer {KEY}"})).text)
        answers.append((await client.get(urls["metrics"])).text)
    assert "shoal_rejected_total" in answers[-1]
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    return f"{lines}{out.decode()}{err.decode()}", "\n".join(answers)


async def event(process: asyncio.subprocess.Process) -> dict[str, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(60):
        line = await process.stdout.readline()
        assert line, (await process.stderr.read()).decode()
    found: dict[str, str] = json.loads(line)
    return found
