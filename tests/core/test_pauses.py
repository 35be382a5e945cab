"""What a program does that makes no iteration, as its log and its functions tell."""

import pytest

from sentinel.core.stacks import pauses


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("Evaluating: 34/200", "evaluating"),
        ("Validation DataLoader 0:  20%|██        | 10/50 [00:20<01:20]", "evaluating"),
        ("[eval] batch 12", "evaluating"),
        ("Testing DataLoader 0: 3/10", "evaluating"),
        ("val: 34/200", "evaluating"),
        ("Sanity Checking DataLoader 0: 1/2", "evaluating"),
        ("Saving the dataset (3/8 shards)", "saving"),
        ("Writing checkpoint shard 3 of 8", "saving"),
        ("Map (num_proc=8):  34%|███       | 3400/10000", "preparing data"),
        ("Running tokenizer on dataset: 15 %", "preparing data"),
        ("Tokenising validation texts: 3/20", "preparing data"),
        ("Generating train split: 3000 examples [00:12, 250.00 examples/s]", "preparing data"),
        ("Downloading shards: 3/8", "preparing data"),
        ("Compiling kernel 3/20", "compiling"),
        ("Loading validation data: 3/20", "loading"),
        ("Loading checkpoint shards: 3/8", "loading"),
        ("  4%|▍         | 2/50 [00:30<12:00]", ""),
        ("step 3/20 loss 0.5", ""),
        (" > building train, validation, and test datasets for GPT ...", "preparing data"),
        ("Overriding: eval_interval = 250", ""),
        ("save_steps: 500", ""),
        ("/home/me/test/train.py:12: UserWarning: 3/20", ""),
        ("gpu-test-3 batch 12", ""),
        ("Epoch 3:  50%|█████     | 100/200 [00:10<00:10, 9.9it/s, val_loss=0.5]", ""),
        ("step 500: train loss 2.3, val loss 2.4", ""),
        ("valid tokens: 300", ""),
        ("mAP: 0.345 3/20", ""),
        ("load average: 0.3, 0.2", ""),
        ("[tensorflow/compiler/xla/service.cc:1] Loaded cuDNN", ""),
        ("Disk writes: 30", ""),
    ],
)
def test_the_first_word_of_a_line_that_tells_decides(line: str, what: str) -> None:
    assert pauses.told_by(line) == what


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        ("evaluation_loop (transformers/trainer.py:4512)", "evaluating"),
        ("_EvaluationLoop.run (lightning/pytorch/loops/evaluation_loop.py:152)", "evaluating"),
        ("estimate_loss (train.py:40)", "evaluating"),
        ("Trainer._save_checkpoint (transformers/trainer.py:3000)", "saving"),
        ("state_dict (torch/nn/modules/module.py:2100)", "saving"),
        ("prepare_dataset (train.py:7)", "preparing data"),
        ("build_val_dataset (train.py:7)", "preparing data"),
        ("run (/a/very/long/fold", ""),
        ("Builder.download_and_prepare (builder.py:7)", "preparing data"),
        ("_map_single (datasets/arrow_dataset.py:3500)", "preparing data"),
        ("Dataset.save_to_disk (datasets/arrow_dataset.py:1500)", "saving"),
    ],
)
def test_what_is_done_in_a_function_goes_by_its_name_and_its_file(frame: str, what: str) -> None:
    assert pauses.done_in(frame) == what
