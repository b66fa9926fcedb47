//! Reads the configuration of each architecture into a list of layers. One file for each line of models, which reads
//! like its paper.

mod deepseek;
mod facts;
mod gemma;
mod gemma4;
mod gpt;
mod granite;
mod granite_hybrid;
mod hybrid;
mod lfm;
mod llama;
mod mistral;
mod moe;
mod nemotron_h;
mod olmo;
mod parallel;
mod phi;
mod qwen_hybrid;
mod unread;

use serde_json::{Map, Value};

use super::{Architecture, ModelConfig};
use crate::config_file::CONFIG_FILE;
use crate::error::CheckpointError;
use crate::fields::{Fields, ReadFields};

/// Reads the configuration of a model of `architecture`. `members` are those of the text model.
pub(crate) fn read(
    architecture: Architecture,
    members: &Map<String, Value>,
) -> Result<ModelConfig, CheckpointError> {
    let known = ReadFields::default();
    let fields = Fields::new(CONFIG_FILE, members).noting(&known);
    let config = match architecture {
        Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => llama::read(architecture, &fields),
        Architecture::SmolLm3 => llama::smol(&fields),
        Architecture::Gemma => gemma::first(&fields),
        Architecture::Gemma2 => gemma::second(&fields),
        Architecture::Gemma3 => gemma::third(&fields),
        Architecture::Gemma4 => gemma4::read(&fields),
        Architecture::Mistral => mistral::mistral(&fields),
        Architecture::Ministral3 => mistral::ministral(&fields),
        Architecture::Granite => granite::read(&fields),
        Architecture::Olmo2 => olmo::second(&fields),
        Architecture::Olmo3 => olmo::third(&fields),
        Architecture::Phi3 => phi::third(&fields),
        Architecture::Phi => phi::second(&fields),
        Architecture::Gpt2 => gpt::second(&fields),
        Architecture::GptNeoX => gpt::neo_x(&fields),
        Architecture::StarCoder2 => gpt::star_coder(&fields),
        Architecture::Cohere => parallel::cohere(&fields),
        Architecture::Cohere2 => parallel::cohere2(&fields),
        Architecture::StableLm => parallel::stable_lm(&fields),
        Architecture::Nemotron => granite::nemotron(&fields),
        Architecture::Glm4 => phi::glm(&fields),
        Architecture::Mixtral => moe::mixtral(&fields),
        Architecture::Qwen2Moe => moe::qwen2(&fields),
        Architecture::Qwen3Moe => moe::qwen3(&fields),
        Architecture::OlMoe => moe::olmo(&fields),
        Architecture::GptOss => moe::gpt_oss(&fields),
        Architecture::GraniteMoe => moe::granite(&fields),
        Architecture::Lfm2 => lfm::second(&fields),
        Architecture::Lfm2Moe => lfm::second_moe(&fields),
        Architecture::Qwen35 => qwen_hybrid::dense(&fields),
        Architecture::Qwen35Moe => qwen_hybrid::moe(&fields),
        Architecture::Qwen3Next => qwen_hybrid::next(&fields),
        Architecture::GraniteHybrid => granite_hybrid::read(&fields),
        Architecture::NemotronH => nemotron_h::read(&fields),
        Architecture::DeepseekV2 => deepseek::second(&fields),
        Architecture::DeepseekV3 => deepseek::third(&fields),
        Architecture::Glm4MoeLite => deepseek::glm_flash(&fields),
        Architecture::Glm4Moe => deepseek::glm(&fields),
    }?;
    facts::check_pair_factors(&fields, &config)?;
    unread::refuse_unread(&fields, &known)?;
    if architecture != Architecture::Ministral3 {
        unread::refuse_growth(&fields)?;
    }
    Ok(config)
}
