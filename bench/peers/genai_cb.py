"""OpenVINO GenAI's ContinuousBatchingPipeline as a worker: its engine for many users on one device.

    python -m bench.peers.genai_cb DIRECTORY CHUNK [PROPERTY=VALUE …]

Requests: {"prompts": [ids, …], "tokens": n} -> {"seconds", "answers"}, all prompts at once.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai

from bench.workers import Message, answer


def main(directory: str, chunk: str, *properties: str) -> None:
    """Serve generate requests over the directory that bench.peers.genai wrote."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1  # GB: far more than these prompts need, so that nothing is evicted
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = int(chunk)
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    settings = {"INFERENCE_NUM_THREADS": 1, **dict(item.split("=", 1) for item in properties)}
    pipeline = genai.ContinuousBatchingPipeline(directory, scheduler, "CPU", settings)

    def generate(request: Message) -> Message:
        config = genai.GenerationConfig(max_new_tokens=request["tokens"], do_sample=False, ignore_eos=True)
        ids = [ov.Tensor(np.array([prompt], np.int64)) for prompt in request["prompts"]]
        begun = time.perf_counter()
        results = pipeline.generate(ids, [config] * len(ids))
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "answers": [list(result.m_generation_ids[0]) for result in results]}

    answer(generate)


if __name__ == "__main__":
    main(*sys.argv[1:])
