//! The tables as they were written down, and what holds between and beyond their rows.

use super::*;
use proptest::prelude::*;

fn of(task: Task, size: ModelSize, gigabytes: f64, gpus: u32) -> Advice {
    advise(&Asked { task, size, gpu_memory_gigabytes: gigabytes, gpus }).unwrap()
}

#[test]
fn whisper_on_32_gb_is_the_table() {
    for (size, least, most) in
        [(ModelSize::Small, 48, 64), (ModelSize::Medium, 24, 32), (ModelSize::Large, 12, 16)]
    {
        let advice = of(Task::Whisper, size, 32.0, 1);
        assert_eq!((advice.batch_size, advice.batch_size_most), (least, most), "{size:?}");
        assert_eq!((advice.basis, advice.fits), (Basis::Table, true));
        assert_eq!(advice.effective_batch_size, 96);
        assert!(advice.gradient_checkpointing);
    }
    assert_eq!(of(Task::Whisper, ModelSize::Small, 32.0, 1).gradient_accumulation_steps, 2);
}

#[test]
fn two_gpus_are_the_matrix() {
    let rows = [
        (12.0, (8, 8), 4096, 8192, (6, 8)),
        (16.0, (12, 12), 6144, 10_240, (4, 6)),
        (24.0, (16, 24), 8192, 16_384, (2, 4)),
    ];
    for (gigabytes, batch, data, model, prefetch) in rows {
        let advice = of(Task::Tts, ModelSize::Tiny, gigabytes, 2);
        assert_eq!(advice.basis, Basis::Table);
        let split = advice.split.unwrap();
        assert_eq!((split.batch_size, split.batch_size_most), batch);
        assert_eq!((split.data_gpu_memory_mebibytes, split.model_gpu_memory_mebibytes), (data, model));
        assert_eq!((split.prefetch_least, split.prefetch), prefetch);
        assert_eq!((advice.batch_size, advice.batch_size_most), batch);
    }
    let advice = of(Task::Tts, ModelSize::Tiny, 24.0, 2);
    assert_eq!(
        advice.settings,
        "--batch-size 16 --gradient-accumulation-steps 2 --prefetch-buffer-size 4 --bf16 --data-gpu 0 --model-gpu 1 \
         --data-gpu-memory 8192 --model-gpu-memory 16384"
    );
}

#[test]
fn between_rows_is_said_and_lies_between() {
    let advice = of(Task::Tts, ModelSize::Tiny, 20.0, 2);
    assert_eq!(advice.basis, Basis::Interpolated);
    let split = advice.split.unwrap();
    assert_eq!((split.batch_size, split.batch_size_most), (14, 16));
    assert_eq!((split.data_gpu_memory_mebibytes, split.model_gpu_memory_mebibytes), (7168, 13_312));
    assert_eq!(of(Task::Tts, ModelSize::Tiny, 8.0, 2).basis, Basis::Extrapolated);
    assert_eq!(of(Task::Whisper, ModelSize::Small, 24.0, 1).basis, Basis::Extrapolated);
}

#[test]
fn what_was_written_down_for_other_tasks() {
    let lm = of(Task::Lm, ModelSize::Small, 24.0, 1);
    assert_eq!((lm.batch_size, lm.batch_size_most, lm.gradient_accumulation_steps), (4, 8, 4));
    assert_eq!((lm.prefetch, lm.basis), (8, Basis::Table));
    let npy = of(Task::Npy, ModelSize::Small, 8.0, 1);
    assert_eq!((npy.batch_size, npy.gradient_accumulation_steps, npy.prefetch), (64, 1, 6));
}

#[test]
fn a_model_that_does_not_fit_is_said_to() {
    let advice = of(Task::Whisper, ModelSize::Large, 12.0, 1);
    assert!(!advice.fits);
    assert_eq!(advice.batch_size, 1);
    assert!(advice.notes.iter().any(|note| note.contains("LoRA")), "{:?}", advice.notes);
}

#[test]
fn memory_is_read_as_people_write_it() {
    for text in ["24GB", "24", "24 GB", "24gb", "24GiB", "24g", "24576MB", "24576MiB", "24.0GB"] {
        assert!(same(gigabytes(text).unwrap(), 24.0), "{text}");
    }
    for (text, hint) in [
        ("lots", "24GB"),
        ("", "24GB"),
        ("-24GB", "24GB"),
        ("24XB", "24GB"),
        ("0", "24GB"),
        ("24576", "24576MB meant"),
        ("1e3", "24GB"),
        ("1.2.3", "24GB"),
    ] {
        let error = gigabytes(text).unwrap_err().to_string();
        let (_, told) = error.split_once("\nhint: ").expect(&error);
        assert!(told.contains(hint), "{text}: {error}");
    }
}

#[test]
fn names_are_read_as_people_write_them() {
    for (text, size) in [
        ("small", ModelSize::Small),
        ("Large", ModelSize::Large),
        ("openai/whisper-large-v3", ModelSize::Large),
        ("small.en", ModelSize::Small),
    ] {
        assert_eq!(text.parse::<ModelSize>().unwrap(), size);
    }
    assert!("huge".parse::<ModelSize>().unwrap_err().to_string().contains("hint: tiny"));
    assert!("images".parse::<Task>().unwrap_err().to_string().contains("hint: whisper"));
    assert!(
        advise(&Asked { task: Task::Lm, size: ModelSize::Tiny, gpu_memory_gigabytes: 24.0, gpus: 0 })
            .is_err()
    );
}

fn tasks() -> impl Strategy<Value = Task> {
    prop::sample::select(vec![Task::Whisper, Task::Tts, Task::Lm, Task::Npy])
}

fn sizes() -> impl Strategy<Value = ModelSize> {
    prop::sample::select(vec![
        ModelSize::Tiny,
        ModelSize::Base,
        ModelSize::Small,
        ModelSize::Medium,
        ModelSize::Large,
    ])
}

proptest! {
    #[test]
    fn more_memory_never_means_fewer_samples(
        task in tasks(), size in sizes(), gigabytes in 1.0_f64..900.0, more in 0.0_f64..100.0, gpus in 1_u32..9,
    ) {
        let (less, more) = (of(task, size, gigabytes, gpus), of(task, size, gigabytes + more, gpus));
        prop_assert!(less.batch_size <= more.batch_size);
        prop_assert!(less.batch_size <= less.batch_size_most);
        prop_assert!(less.batch_size >= 1 && less.batch_size_most <= 256);
        prop_assert!(less.effective_batch_size >= less.batch_size);
        if let Some(split) = less.split {
            let all = split.data_gpu_memory_mebibytes.max(split.model_gpu_memory_mebibytes) as f64;
            prop_assert!(all <= gigabytes * 1024.0);
        }
    }

    #[test]
    fn a_larger_model_never_gets_more_samples(task in tasks(), gigabytes in 1.0_f64..1000.0) {
        let sizes = [ModelSize::Tiny, ModelSize::Base, ModelSize::Small, ModelSize::Medium, ModelSize::Large];
        let batches: Vec<u64> = sizes.into_iter().map(|size| of(task, size, gigabytes, 1).batch_size).collect();
        prop_assert!(batches.is_sorted_by(|a, b| a >= b), "{batches:?}");
    }

    #[test]
    fn any_text_is_memory_or_an_error_with_a_hint(text in "\\PC{0,12}") {
        if let Err(error) = gigabytes(&text) {
            prop_assert!(error.to_string().contains("\nhint: "));
        }
    }
}
