//! Whisper: an encoder of sound and a decoder of text, as in the paper, in Hugging Face's format.
//!
//! The names and shapes of weights are those of transformers' `WhisperForConditionalGeneration`, so that a folder can go
//! from one to the other and back. Labels of −100 count nothing; what the decoder reads is the labels, one place later, with
//! the start token in front. What is said is decoded greedily, with the keys and values of what was said already kept.

mod config;

use std::{fs, path::Path, sync::Arc};

use burn_tensor::{Tensor, TensorData};
use feedwater::{
    Audio, Builder, Chunk, LogMel, Pipeline, ReadyBatch, Tokenize, WithoutTimes, source::Source,
};
use rand_pcg::{Pcg64Mcg, rand_core::SeedableRng};
use serde_json::{Value, json};

use self::config::Sizes;
use super::{Learns, Prepared, Recipe, features_of, labels_of, read_config};
use crate::{
    Device, Error, Result,
    ops::{Heads, attention, conv1d, cross_entropy, embedding, gelu, layer_norm, linear},
    vocabulary::bytes_with_tokens,
    weights::{Init, Weights, on_host},
};

/// What kind of model a folder is of.
pub const MODEL_TYPE: &str = "whisper";

const END: &str = "<|endoftext|>";
const START: &str = "<|startoftranscript|>";
const NO_TIMES: &str = "<|notimestamps|>";
/// Frames of features for each place of the encoder, and places in a second.
const FRAMES_A_PLACE: usize = 2;
const PLACES_A_SECOND: usize = 50;

/// The sizes that there are, with width, layers and heads.
pub const SIZES: [(&str, usize, usize, usize); 5] = [
    ("tiny", 384, 4, 6),
    ("base", 512, 6, 8),
    ("small", 768, 12, 12),
    ("medium", 1024, 24, 16),
    ("large", 1280, 32, 20),
];

/// The model.
#[derive(Clone)]
pub struct Whisper {
    sizes: Sizes,
    config: Value,
    tokenizer: Arc<Vec<u8>>,
    texts: Arc<Tokenize>,
    /// Files that belong to the model and are passed on as they are.
    others: Arc<Vec<(&'static str, Vec<u8>)>>,
    prefix: Vec<String>,
    chunked: bool,
    /// The first of the tokens that say when something is said, which stand behind all others. They are not decoded.
    times: usize,
}

/// What else a folder of transformers has.
const OTHERS: [&str; 8] = [
    "preprocessor_config.json",
    "processor_config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "normalizer.json",
    "vocab.json",
];

impl Whisper {
    /// A new model of one of [`SIZES`] for clips of so many seconds, with a tokenizer or with a token for each byte.
    pub fn new(size: &str, seconds: usize, tokenizer: Option<&Path>) -> Result<Self> {
        let Some(&(_, width, layers, heads)) = SIZES.iter().find(|(name, ..)| *name == size) else {
            let names: Vec<&str> = SIZES.iter().map(|(name, ..)| *name).collect();
            return Err(Error::config(
                format!("there is no size `{size}`"),
                format!("one of {}", names.join(", ")),
            ));
        };
        let tokenizer = match tokenizer {
            Some(path) => fs::read(path).map_err(Error::read(path))?,
            None => bytes_with_tokens(&[END, START, NO_TIMES]).into_bytes(),
        };
        let texts = parse(&tokenizer)?;
        let (start, end) = (texts.id(START)?, texts.id(END)?);
        let config = json!({
            "model_type": MODEL_TYPE,
            "architectures": ["WhisperForConditionalGeneration"],
            "vocab_size": texts.size(),
            "num_mel_bins": 80,
            "d_model": width,
            "encoder_layers": layers,
            "encoder_attention_heads": heads,
            "encoder_ffn_dim": 4 * width,
            "decoder_layers": layers,
            "decoder_attention_heads": heads,
            "decoder_ffn_dim": 4 * width,
            "max_source_positions": seconds * PLACES_A_SECOND,
            "max_target_positions": 448,
            "activation_function": "gelu",
            "scale_embedding": false,
            "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
            "is_encoder_decoder": true,
            "decoder_start_token_id": start, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
            "suppress_tokens": null, "begin_suppress_tokens": null,
        });
        let sizes = Sizes::of(&config).map_err(|what| Error::config(what, "this is a bug"))?;
        let extractor = json!({
            "feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "WhisperProcessor",
            "feature_size": sizes.bins, "sampling_rate": 16_000, "hop_length": 160, "n_fft": 400,
            "chunk_length": seconds, "n_samples": seconds * 16_000, "nb_max_frames": sizes.places * FRAMES_A_PLACE,
            "padding_side": "right", "padding_value": 0.0, "return_attention_mask": false,
        });
        let about_tokens = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 448,
            "bos_token": END, "eos_token": END, "pad_token": END, "unk_token": END,
        });
        let generation = json!({
            "decoder_start_token_id": start, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "max_length": 448,
        });
        let others = [
            ("preprocessor_config.json", extractor),
            ("tokenizer_config.json", about_tokens),
            ("generation_config.json", generation),
        ];
        let others = others.map(|(name, value)| (name, format!("{value:#}\n").into_bytes())).to_vec();
        Ok(Self::made(sizes, config, tokenizer, texts, others))
    }

    fn made(
        sizes: Sizes,
        config: Value,
        tokenizer: Vec<u8>,
        texts: Tokenize,
        others: Vec<(&'static str, Vec<u8>)>,
    ) -> Self {
        let prefix = if texts.id(NO_TIMES).is_ok() { vec![NO_TIMES.to_owned()] } else { Vec::new() };
        let times = texts.id("<|0.00|>").map_or(usize::MAX, |first| first as usize);
        let (tokenizer, others) = (Arc::new(tokenizer), Arc::new(others));
        Self { sizes, config, tokenizer, texts: Arc::new(texts), others, prefix, chunked: false, times }
    }

    /// The one in a folder, of transformers or ours.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let config = read_config(folder)?;
        let sizes = Sizes::of(&config).map_err(|what| Error::Checkpoint { path, what })?;
        let path = folder.join("tokenizer.json");
        let tokenizer = fs::read(&path).map_err(Error::read(&path))?;
        let wrong = |what: String| Error::Checkpoint { path: path.clone(), what };
        let texts = parse(&tokenizer).map_err(|error| wrong(error.to_string()))?;
        if texts.size() > sizes.tokens {
            return Err(wrong(format!(
                "it has {} tokens, and the model in `config.json` has {}\nhint: take the tokenizer.json that came with the model",
                texts.size(),
                sizes.tokens
            )));
        }
        match texts.id(END) {
            Ok(id) if id == sizes.end => {}
            Ok(id) => {
                return Err(wrong(format!(
                    "its `{END}` is {id}, and `config.json` says {}\nhint: take the tokenizer.json that came with the model",
                    sizes.end
                )));
            }
            Err(_) => return Err(wrong(format!("it has no `{END}`: it is not Whisper's"))),
        }
        let other = |name: &'static str| Some((name, fs::read(folder.join(name)).ok()?));
        let others = OTHERS.into_iter().filter_map(other).collect();
        Ok(Self::made(sizes, config, tokenizer, texts, others))
    }

    /// With the tokens of a language before each text, as a model of several languages wants it.
    pub fn language(mut self, language: &str) -> Result<Self> {
        let tokens = [format!("<|{language}|>"), "<|transcribe|>".to_owned()];
        for token in &tokens {
            self.texts.id(token)?;
        }
        self.prefix = tokens.into_iter().chain(self.prefix).collect();
        Ok(self)
    }

    /// Clips that are too long are cut, by the times of their words.
    #[must_use]
    pub fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// Weights to begin with, as transformers makes them.
    pub fn weights(&self, seed: u64, device: &Device) -> Weights {
        let Sizes { bins, width, encoder, decoder, places, texts, tokens, .. } = self.sizes;
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut weights = Weights::new(device);
        let normal = Init::Normal(0.02);
        let mut add = |name: String, shape: &[usize], init: Init| weights.add(name, shape, init, &mut rng);
        let mut names = Vec::new();
        for (stack, part, crossed) in [(encoder, "encoder", false), (decoder, "decoder", true)] {
            for at in 0..stack.layers {
                let name = format!("model.{part}.layers.{at}");
                for attention in ["self_attn", "encoder_attn"].into_iter().take(1 + usize::from(crossed)) {
                    for (which, bias) in
                        [("k_proj", false), ("v_proj", true), ("q_proj", true), ("out_proj", true)]
                    {
                        add(format!("{name}.{attention}.{which}.weight"), &[width, width], normal);
                        if bias {
                            add(format!("{name}.{attention}.{which}.bias"), &[width], Init::Constant(0.0));
                        }
                    }
                    names.push(format!("{name}.{attention}_layer_norm"));
                }
                for (which, outputs, inputs) in [("fc1", stack.wide, width), ("fc2", width, stack.wide)] {
                    add(format!("{name}.{which}.weight"), &[outputs, inputs], normal);
                    add(format!("{name}.{which}.bias"), &[outputs], Init::Constant(0.0));
                }
                names.push(format!("{name}.final_layer_norm"));
            }
            names.push(format!("model.{part}.layer_norm"));
        }
        for name in names {
            add(format!("{name}.weight"), &[width], Init::Constant(1.0));
            add(format!("{name}.bias"), &[width], Init::Constant(0.0));
        }
        for (name, inputs) in [("conv1", bins), ("conv2", width)] {
            add(format!("model.encoder.{name}.weight"), &[width, inputs, 3], normal);
            add(format!("model.encoder.{name}.bias"), &[width], Init::Constant(0.0));
        }
        add("model.decoder.embed_tokens.weight".to_owned(), &[tokens, width], normal);
        add("model.decoder.embed_positions.weight".to_owned(), &[texts, width], normal);
        weights.put(ENCODER_PLACES, &[places, width], sinusoids(places, width));
        // transformers does not train it.
        weights.fix(ENCODER_PLACES);
        weights
    }

    /// What the encoder makes of features `[rows, frames, bins]`, flat: `[rows, places, width]`.
    fn encode(&self, weights: &Weights, features: Tensor<3>) -> Tensor<1> {
        let [rows, ..] = features.dims();
        let Sizes { width, places, encoder, .. } = self.sizes;
        let mut x = features;
        for (name, stride) in [("conv1", 1), ("conv2", FRAMES_A_PLACE)] {
            let name = format!("model.encoder.{name}");
            let (weight, bias) =
                (weights.get(&format!("{name}.weight")), weights.get(&format!("{name}.bias")));
            let y = conv1d(x, weight, bias, stride);
            let shape = y.dims();
            x = gelu(y.reshape([-1])).reshape(shape);
        }
        let at: Tensor<2> = weights.get(ENCODER_PLACES);
        let mut x = (x + at.reshape([1, places, width])).reshape([-1]);
        for layer in 0..encoder.layers {
            let name = format!("model.encoder.layers.{layer}");
            let y = norm(weights, &format!("{name}.self_attn_layer_norm"), x.clone());
            let heads = Heads { count: encoder.heads, queries: places, keys: places, causal: false };
            let [q, k, v] =
                ["q", "k", "v"].map(|which| project(weights, &format!("{name}.self_attn"), which, y.clone()));
            x = x + self.attend(weights, &format!("{name}.self_attn"), q, k, v, heads);
            x = feed_forward(weights, &name, x);
        }
        debug_assert_eq!(x.dims()[0], rows * places * width);
        norm(weights, "model.encoder.layer_norm", x)
    }

    fn attend(
        &self,
        weights: &Weights,
        name: &str,
        q: Tensor<1>,
        k: Tensor<1>,
        v: Tensor<1>,
        heads: Heads,
    ) -> Tensor<1> {
        project(weights, name, "out", attention(q, k, v, heads, self.sizes.width))
    }

    /// What is heard in each row, for the decoder to look at: the keys and values of each of its layers.
    fn heard(&self, weights: &Weights, sound: &Tensor<1>) -> Vec<[Tensor<1>; 2]> {
        let layer = |at: usize| {
            let name = format!("model.decoder.layers.{at}.encoder_attn");
            ["k", "v"].map(|which| project(weights, &name, which, sound.clone()))
        };
        (0..self.sizes.decoder.layers).map(layer).collect()
    }

    /// Logits `[rows, texts, tokens]`, flat, of what comes after each of some tokens `[rows, texts]`. What was said before
    /// is in `kept`, which the new keys and values are added to.
    fn decode(
        &self,
        weights: &Weights,
        heard: &[[Tensor<1>; 2]],
        tokens: Vec<u32>,
        rows: usize,
        kept: &mut Vec<[Tensor<3>; 2]>,
    ) -> Tensor<1> {
        let Sizes { width, places, decoder, .. } = self.sizes;
        let texts = tokens.len() / rows;
        let before = kept.first().map_or(0, |[keys, _]| keys.dims()[1]);
        let table: Tensor<2> = weights.get("model.decoder.embed_tokens.weight");
        let at: Tensor<2> = weights.get("model.decoder.embed_positions.weight");
        let numbers = (0..rows).flat_map(|_| (before..before + texts).map(|at| at as u32)).collect();
        let mut x = embedding(table.clone(), tokens) + embedding(at, numbers);
        for (layer, heard) in heard.iter().enumerate() {
            let name = format!("model.decoder.layers.{layer}");
            let own = format!("{name}.self_attn");
            let y = norm(weights, &format!("{name}.self_attn_layer_norm"), x.clone());
            let [q, k, v] = ["q", "k", "v"].map(|which| project(weights, &own, which, y.clone()));
            let new = [k, v].map(|new| new.reshape([rows, texts, width]));
            let all = if let Some(old) = kept.get_mut(layer) {
                let [keys, values] = new;
                let [old_keys, old_values] = old.clone();
                *old = [Tensor::cat(vec![old_keys, keys], 1), Tensor::cat(vec![old_values, values], 1)];
                old.clone()
            } else {
                kept.push(new.clone());
                new
            };
            let [k, v] = all.map(|all| all.reshape([-1]));
            let heads = Heads { count: decoder.heads, queries: texts, keys: before + texts, causal: true };
            x = x + self.attend(weights, &own, q, k, v, heads);

            let other = format!("{name}.encoder_attn");
            let y = norm(weights, &format!("{name}.encoder_attn_layer_norm"), x.clone());
            let q = project(weights, &other, "q", y);
            let [k, v] = heard.clone();
            let heads = Heads { count: decoder.heads, queries: texts, keys: places, causal: false };
            x = x + self.attend(weights, &other, q, k, v, heads);
            x = feed_forward(weights, &name, x);
        }
        linear(norm(weights, "model.decoder.layer_norm", x), table, None)
    }

    /// Logits `[rows, texts, tokens]`, flat, where the decoder reads the labels of a batch.
    pub fn logits(&self, weights: &Weights, batch: &Prepared) -> Tensor<1> {
        let Prepared { labels, wide, .. } = batch;
        let wide = *wide;
        let mut read = Vec::with_capacity(labels.len());
        for row in labels.chunks_exact(wide) {
            read.push(self.sizes.start);
            let id = |label: &i64| u32::try_from(*label).unwrap_or(self.sizes.pad);
            read.extend(row[..wide - 1].iter().map(id));
        }
        let rows = labels.len() / wide;
        let heard = self.heard(weights, &self.encode(weights, weights.near(&batch.features)));
        self.decode(weights, &heard, read, rows, &mut Vec::new())
    }

    /// What is said in each row, as tokens, the likeliest one after another.
    pub fn greedy(&self, weights: &Weights, batch: &Prepared) -> Vec<Vec<u32>> {
        let features = weights.near(&batch.features);
        let rows = features.dims()[0];
        let heard = self.heard(weights, &self.encode(weights, features));
        // Where it is known what is right, much more than that is wrong in any case.
        let known = if batch.labels.is_empty() { self.sizes.texts } else { 2 * batch.wide + 8 };
        let most = known.min(self.sizes.texts);
        let (mut said, mut kept) = (vec![Vec::new(); rows], Vec::new());
        let mut next = vec![self.sizes.start; rows];
        let mut over = vec![false; rows];
        for _ in 0..most {
            let logits = on_host(self.decode(weights, &heard, next.clone(), rows, &mut kept));
            for (row, logits) in logits.chunks_exact(self.sizes.tokens).enumerate() {
                let best = (0..logits.len().min(self.times))
                    .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
                    .unwrap_or(0) as u32;
                over[row] |= best == self.sizes.end;
                next[row] = best;
                if !over[row] {
                    said[row].push(best);
                }
            }
            if over.iter().all(|over| *over) {
                break;
            }
        }
        said
    }
}

const ENCODER_PLACES: &str = "model.encoder.embed_positions.weight";

fn parse(tokenizer: &[u8]) -> Result<Tokenize> {
    let hint = "the `tokenizer.json` of the model's page on Hugging Face";
    Tokenize::json(tokenizer).map_err(|fault| Error::config(fault.to_string(), hint))
}

fn norm(weights: &Weights, name: &str, x: Tensor<1>) -> Tensor<1> {
    layer_norm(x, weights.get(&format!("{name}.weight")), weights.get(&format!("{name}.bias")))
}

fn project(weights: &Weights, name: &str, which: &str, x: Tensor<1>) -> Tensor<1> {
    let bias = format!("{name}.{which}_proj.bias");
    let bias = weights.has(&bias).then(|| weights.get(&bias));
    linear(x, weights.get(&format!("{name}.{which}_proj.weight")), bias)
}

fn feed_forward(weights: &Weights, name: &str, x: Tensor<1>) -> Tensor<1> {
    let part = |which: &str, x: Tensor<1>| {
        let bias = Some(weights.get(&format!("{name}.{which}.bias")));
        linear(x, weights.get(&format!("{name}.{which}.weight")), bias)
    };
    let y = norm(weights, &format!("{name}.final_layer_norm"), x.clone());
    x + part("fc2", gelu(part("fc1", y)))
}

/// Where in the clip a place is, as waves of different lengths.
fn sinusoids(places: usize, width: usize) -> Vec<f32> {
    let half = width / 2;
    let step = 10_000_f32.ln() / (half as f32 - 1.0);
    let wave = |at: usize, k: usize| at as f32 * (-step * k as f32).exp();
    (0..places)
        .flat_map(|at| {
            (0..half).map(move |k| wave(at, k).sin()).chain((0..half).map(move |k| wave(at, k).cos()))
        })
        .collect()
}

impl Recipe for Whisper {
    fn name(&self) -> &'static str {
        "whisper"
    }

    fn learns(&self) -> Learns {
        Learns::Texts
    }

    fn pipeline(&self, source: Box<dyn Source>, learning: bool) -> Result<Builder> {
        let seconds = self.sizes.places as f64 / PLACES_A_SECOND as f64;
        let mut flow = Pipeline::from_source(source).decode(Audio::mono(LogMel::RATE));
        if !learning || self.chunked {
            let chunk = Chunk::seconds(seconds);
            flow = flow.chunk(if learning { chunk } else { chunk.without_times(WithoutTimes::NoText) });
        }
        if learning && !self.chunked {
            flow = flow.longest(seconds);
        }
        let flow = flow.log_mel(LogMel::whisper(self.sizes.bins).pad_seconds(seconds));
        if !learning {
            return Ok(flow);
        }
        let texts = parse(&self.tokenizer)?.prefix(&self.prefix)?.suffix([END])?;
        Ok(flow.tokenize(texts.max_tokens(self.sizes.texts)))
    }

    fn prepare(&self, batch: &ReadyBatch, device: &Device) -> Result<Prepared> {
        let (values, [rows, bins, frames], lengths) = features_of(batch)?;
        let wanted = [self.sizes.bins, self.sizes.places * FRAMES_A_PLACE];
        if [bins, frames] != wanted {
            let what = format!("features of {bins} bins and {frames} frames, where {wanted:?} are wanted");
            return Err(Error::config(what, "this is a bug"));
        }
        let mut turned = vec![0.0; values.len()];
        for (from, to) in values.chunks_exact(bins * frames).zip(turned.chunks_exact_mut(bins * frames)) {
            for (bin, from) in from.chunks_exact(frames).enumerate() {
                for (frame, value) in from.iter().enumerate() {
                    to[frame * bins + bin] = *value;
                }
            }
        }
        let features = Tensor::from_data(TensorData::new(turned, [rows, frames, bins]), device);
        let (labels, wide) = labels_of(batch);
        Ok(Prepared {
            features,
            lengths: lengths.to_vec(),
            valid: batch.valid.clone(),
            labels,
            wide,
            hidden: None,
        })
    }

    fn loss(&self, weights: &Weights, batch: &Prepared) -> Result<Tensor<1>> {
        Ok(cross_entropy(self.logits(weights, batch), self.sizes.tokens, &batch.labels))
    }

    fn guess(&self, weights: &Weights, batch: &Prepared) -> Result<Vec<String>> {
        self.greedy(weights, batch).iter().map(|ids| self.said(ids)).collect()
    }

    fn right(&self, batch: &Prepared) -> Result<Vec<String>> {
        batch.rows().map(|row| self.said(&row.collect::<Vec<_>>())).collect()
    }

    fn save(&self, folder: &Path) -> Result<()> {
        let config = format!("{:#}\n", self.config);
        let own = [("config.json", config.as_bytes()), ("tokenizer.json", self.tokenizer.as_slice())];
        let others = self.others.iter().map(|(name, bytes)| (*name, bytes.as_slice()));
        for (name, bytes) in own.into_iter().chain(others) {
            let path = folder.join(name);
            fs::write(&path, bytes).map_err(Error::write(&path))?;
        }
        Ok(())
    }
}

impl Whisper {
    fn said(&self, ids: &[u32]) -> Result<String> {
        let text = self
            .texts
            .text(ids)
            .map_err(|fault| Error::config(fault.to_string(), "is the tokenizer the model's?"))?;
        Ok(text.trim().to_owned())
    }
}
