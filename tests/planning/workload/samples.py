"""A small file of each trace format, by its name: of three requests or more."""

SAMPLES = {
    "Azure CSV": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0\n2024-05-10 00:00:00+00:00,2162,5\n"
    ),
    "BurstGPT CSV": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,1,2.5,ChatGPT,472,18,490,Conversation log\n45,,0,GPT-4,1087,230,1317,API "
        "log\n118,1,1.0,ChatGPT,417,276,693,Conversation log\n"
    ),
    "Mooncake JSONL": (
        '{"timestamp": 0, "input_length": 1100, "output_length": 6, "hash_ids": [0, 1, 2]}\n'
        '{"timestamp": 277, "input_length": 1024, "output_length": 9, "hash_ids": [0, 3]}\n'
        '{"timestamp": 300, "input_length": 30, "output_length": 9}\n'
    ),
    "raylane ledger JSONL": (
        '{"request_id": "a", "arrived_s": 1000.5, "prompt_tokens": 7, "output_tokens": 3, "tenant": "t", "class": '
        '"batch", "max_tokens": 9}\n'
        '{"request_id": "b", "arrived_s": 1000.2, "prompt_tokens": null, "output_tokens": null}\n'
        '{"request_id": "c", "arrived_s": 1000.0, "prompt_tokens": 5, "output_tokens": 2, "tenant": "", "class": '
        '"interactive", "model": "m"}\n'
        '{"request_id": "d", "arrived_s": 1000.7, "prompt_tokens": 8, "output_tokens": 1}\n'
    ),
    "raylane trace JSONL": (
        '{"raylane_trace": 1, "chunk_tokens": 64}\n'
        '{"arrived_s": 0.0, "prompt_tokens": 200, "output_tokens": 6, "tenant": "t", "class": "batch", "session": 0, '
        '"prefix": [5, 2, 90, 1]}\n'
        '{"arrived_s": 1.5, "prompt_tokens": 70, "output_tokens": 9, "model": "m", "region": "eu", "max_tokens": 99, '
        '"prefix": [5, 1]}\n'
        '{"arrived_s": 1.5, "prompt_tokens": 30, "output_tokens": 9}\n'
    ),
}
