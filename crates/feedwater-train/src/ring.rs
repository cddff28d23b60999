//! How does a batch reach the model while the model works on another?
//!
//! A thread of its own takes batches from the engine, has the recipe prepare them on the data device, and puts them onto the
//! model's device: one is being made, one waits, one is learned from. So a copy overlaps a step, and where the two devices
//! are one, what is left is that batches are prepared beside the step and not within it.
//!
//! What the run has consumed is what the model was given, not what waits here: with each batch goes the state of the data
//! after it, and that is what a checkpoint keeps.

use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::Scope,
    time::Instant,
};

use feedwater::{Pipeline, State};
use feedwater_profile::record::Input;

use crate::{
    Error, Result,
    device::Devices,
    recipes::{Prepared, Recipe, has_samples},
};

/// Batches that wait to be taken. With the one that is being made and the one that is learned from, there are three.
const WAITING: usize = 1;

/// A batch on the model's device.
pub(crate) struct Ready {
    pub(crate) batch: Prepared,
    /// The state of the data after it.
    pub(crate) state: State,
    pub(crate) input: Input,
    pub(crate) epoch: u64,
    pub(crate) rows: u64,
    /// What the data device had to do for it.
    pub(crate) prepare_nanos: u64,
}

/// Starts to make batches ready, so many of them, epoch after epoch.
pub(crate) fn start<'scope, R: Recipe + ?Sized>(
    scope: &'scope Scope<'scope, '_>,
    recipe: &'scope R,
    pipeline: &'scope mut Pipeline,
    count: u64,
    devices: &'scope Devices,
) -> Receiver<Result<Ready>> {
    let (to, from) = sync_channel(WAITING);
    scope.spawn(move || {
        fill(recipe, pipeline, count, devices, &to);
        // The engine's threads are not needed any more; what waits for them is not there.
        pipeline.stop();
    });
    from
}

fn fill<R: Recipe + ?Sized>(
    recipe: &R,
    pipeline: &mut Pipeline,
    count: u64,
    devices: &Devices,
    to: &SyncSender<Result<Ready>>,
) {
    let mut epoch = pipeline.state().epoch();
    let mut reading = None;
    let mut empty = false;
    let mut left = count;
    while left > 0 {
        let mut here = reading.take().unwrap_or_else(|| pipeline.begin(epoch));
        let Some(batch) = pipeline.next(&mut here) else {
            if empty {
                let hint = "is every sample left out? `feedwater inspect` shows them";
                let _ = to.send(Err(Error::config("an epoch has no batches", hint)));
                return;
            }
            empty = true;
            epoch += 1;
            continue;
        };
        reading = Some(here);
        if batch.as_ref().is_ok_and(|batch| !has_samples(batch)) {
            continue;
        }
        empty = false;
        left -= 1;
        let ready = batch.map_err(Error::from).and_then(|batch| {
            let began = Instant::now();
            let prepared = recipe.prepare(&batch, &devices.data)?.to_device(&devices.model);
            Ok(Ready {
                batch: prepared,
                state: pipeline.state(),
                input: batch.input.clone(),
                epoch: batch.epoch,
                rows: batch.rows() as u64,
                prepare_nanos: began.elapsed().as_nanos() as u64,
            })
        });
        let failed = ready.is_err();
        // Nobody takes it any more where the run has ended.
        if to.send(ready).is_err() || failed {
            return;
        }
    }
}
