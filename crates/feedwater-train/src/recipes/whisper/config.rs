//! What does a `config.json` of transformers say? Sizes; whatever would make another model is refused.

use serde_json::{Value, json};

/// What of a `config.json` makes a difference here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) bins: usize,
    pub(super) width: usize,
    pub(super) encoder: Stack,
    pub(super) decoder: Stack,
    pub(super) places: usize,
    pub(super) texts: usize,
    pub(super) tokens: usize,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) pad: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) wide: usize,
}

/// Keys of a `config.json` that say nothing about the model's arithmetic, or nothing that is done here.
const HARMLESS: &str = "_name_or_path architectures attn_implementation apply_spec_augment begin_suppress_tokens \
    bos_token_id classifier_proj_size decoder_layerdrop dtype encoder_layerdrop forced_bos_token_id \
    forced_decoder_ids forced_eos_token_id id2label init_std is_encoder_decoder label2id lang_ids mask_feature_length \
    mask_feature_min_masks mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob max_length \
    median_filter_width model_type num_hidden_layers output_attentions output_hidden_states problem_type \
    return_dict suppress_ids suppress_tokens torch_dtype transformers_version use_cache chunk_size_feed_forward";

impl Sizes {
    /// Reads a `config.json`; otherwise, what is wrong with it.
    pub(super) fn of(config: &Value) -> Result<Self, String> {
        let about = config.as_object().ok_or("it is no object")?;
        let mut asked = Vec::new();
        let mut number = |name: &'static str| {
            asked.push(name);
            let value = about.get(name).ok_or_else(|| format!("it has no `{name}`"))?;
            value.as_u64().map(|value| value as usize).ok_or_else(|| format!("its `{name}` is {value}"))
        };
        let sizes = Self {
            bins: number("num_mel_bins")?,
            width: number("d_model")?,
            encoder: Stack {
                layers: number("encoder_layers")?,
                heads: number("encoder_attention_heads")?,
                wide: number("encoder_ffn_dim")?,
            },
            decoder: Stack {
                layers: number("decoder_layers")?,
                heads: number("decoder_attention_heads")?,
                wide: number("decoder_ffn_dim")?,
            },
            places: number("max_source_positions")?,
            texts: number("max_target_positions")?,
            tokens: number("vocab_size")?,
            start: number("decoder_start_token_id")? as u32,
            end: number("eos_token_id")? as u32,
            pad: number("pad_token_id")? as u32,
        };
        // What would be another model.
        let fixed = [
            ("activation_function", json!("gelu")),
            ("scale_embedding", json!(false)),
            ("tie_word_embeddings", json!(true)),
            ("use_weighted_layer_sum", json!(false)),
            ("dropout", json!(0.0)),
            ("attention_dropout", json!(0.0)),
            ("activation_dropout", json!(0.0)),
        ];
        for (name, wanted) in &fixed {
            let same = |value: &Value| {
                value == wanted || (value.as_f64().is_some() && value.as_f64() == wanted.as_f64())
            };
            if let Some(other) = about.get(*name).filter(|value| !same(value)) {
                return Err(format!("its `{name}` is {other}, and only {wanted} can be trained here"));
            }
        }
        let known = |name: &str| {
            asked.contains(&name)
                || fixed.iter().any(|(fixed, _)| *fixed == name)
                || HARMLESS.split_whitespace().any(|harmless| harmless == name)
        };
        if let Some(unknown) = about.keys().find(|name| !known(name)) {
            return Err(format!(
                "it has `{unknown}`, which is not known here\nhint: take the line out if it does not change what the model computes"
            ));
        }
        if sizes.start.max(sizes.end).max(sizes.pad) as usize >= sizes.tokens {
            return Err(format!("its `vocab_size` of {} is too small for its own tokens", sizes.tokens));
        }
        if sizes.width < 4 || !sizes.width.is_multiple_of(2) || sizes.places == 0 || sizes.bins == 0 {
            return Err("one of its sizes is too small, or `d_model` is odd".to_owned());
        }
        let whole = |heads: usize| heads > 0 && sizes.width.is_multiple_of(heads);
        if !whole(sizes.encoder.heads) || !whole(sizes.decoder.heads) {
            return Err(format!("its `d_model` of {} is no multiple of its heads", sizes.width));
        }
        Ok(sizes)
    }
}
