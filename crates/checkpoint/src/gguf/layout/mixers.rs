//! Where the weights of latent attention and of recurrent mixers are in a GGUF file. Must not know how metadata is read.

use crate::decoder::{
    ConvolutionConfig, DeltaConfig, LatentConfig, LinearConfig, MambaConfig, RateForm, RowSource,
    ShortConvConfig, SizeField, ValueHeadOrder,
};
use crate::order::{StoredOrder, TiledHeads};

use super::TensorLayout;

impl TensorLayout<'_> {
    pub(super) fn latent(&mut self, latent: &mut LatentConfig, block: &str) {
        let part = |name: &str| format!("{block}.{name}");
        let query = match &mut latent.query.compressed {
            None => "attn_q",
            Some((linear, norm)) => {
                self.linear(linear, &part("attn_q_a"), None);
                self.norm(norm, &part("attn_q_a_norm"));
                "attn_q_b"
            }
        };
        // Plain and rotated rows of all heads are in one tensor, as in Hugging Face's checkpoints.
        self.same_rows(&[&latent.query.plain, &latent.query.rotary], &part(query));
        self.same_rows(&[&latent.latent, &latent.key_rotary], &part("attn_kv_a_mqa"));
        self.norm(&mut latent.latent_norm, &part("attn_kv_a_norm"));
        let (heads, width) = (latent.heads, latent.latent_dim);
        if self.has(&part("attn_k_b.weight")) {
            // Newer files have the two projections apart, and that to the keys transposed.
            let keys = (latent.key.as_mut_slice(), "attn_k_b.weight", (width, latent.plain_dim));
            let values = (latent.value.as_mut_slice(), "attn_v_b.weight", (latent.value_dim, width));
            for (linears, name, (rows, columns)) in [keys, values] {
                let dimensions = [
                    SizeField::new(heads, "heads"),
                    SizeField::new(rows, "rows of a head"),
                    SizeField::new(columns, "columns of a head"),
                ];
                for (index, linear) in linears.iter_mut().enumerate() {
                    let whole = RowSource::whole(part(name), &dimensions);
                    linear.weight = RowSource { expert: Some(index), ..whole };
                    self.keep(&linear.weight, &part(name));
                }
            }
        } else {
            let heads = latent.key.iter().chain(&latent.value);
            for linear in heads {
                self.keep(&linear.weight, &part("attn_kv_b.weight"));
            }
        }
        self.linear(&mut latent.output, &part("attn_output"), None);
    }

    pub(super) fn short_conv(&mut self, mixer: &mut ShortConvConfig, block: &str) {
        let part = |name: &str| format!("{block}.shortconv.{name}");
        self.linear(&mut mixer.input, &part("in_proj"), None);
        self.convolution(&mixer.convolution, &part("conv"));
        self.linear(&mut mixer.output, &part("out_proj"), None);
    }

    pub(super) fn delta(&mut self, delta: &mut DeltaConfig, block: &str) {
        let part = |name: &str| format!("{block}.{name}");
        let (keys, width) = (delta.key_heads * delta.key_dim, delta.value_dim);
        let values = delta.value_heads * width;
        let (groups, each) = (delta.key_heads, delta.value_heads / delta.key_heads.max(1));
        let columns = StoredOrder::TiledColumns(TiledHeads { first: 0, groups, each, width });
        let is_tiled = self.row.is_tiled() && each > 1;
        // If a block of the output's columns holds weights of two heads, all tensors keep the order of the file.
        let restores =
            (self.type_of)(&part("ssm_out.weight")).is_none_or(|stored| columns.keeps_type(stored));
        if is_tiled && !restores {
            delta.head_order = ValueHeadOrder::Tiled;
        }
        let tiled =
            |first, width| (is_tiled && restores).then_some(TiledHeads { first, groups, each, width });
        let rows = |first, width| tiled(first, width).map(StoredOrder::TiledRows);
        let (of_channels, of_values, of_heads) = (rows(2 * keys, width), rows(0, width), rows(0, 1));
        let columns = (is_tiled && restores).then_some(columns);
        if self.row.is_tiled() {
            self.claim(part("attn_qkv.weight"), &delta.query.weight.tensor, of_channels);
            for (linear, name, order) in [
                (&delta.gate, "attn_gate.weight", of_values),
                (&delta.beta, "ssm_beta.weight", of_heads),
                (&delta.step, "ssm_alpha.weight", of_heads),
            ] {
                self.claim(part(name), &linear.weight.tensor, order);
            }
        } else {
            if self.has(&part("ssm_in.weight")) {
                // Older files have the projections as Hugging Face's checkpoints do.
                self.keep(&delta.query.weight, &part("ssm_in.weight"));
            } else {
                let fused = part("attn_qkv");
                for (linear, first) in
                    [(&mut delta.query, 0), (&mut delta.key, keys), (&mut delta.value, 2 * keys)]
                {
                    self.slice(linear, &fused, 2 * keys + values, first);
                }
                self.linear(&mut delta.gate, &part("attn_gate"), None);
            }
            self.keep(&delta.beta.weight, &part("ssm_ba.weight"));
        }
        self.claim(part("ssm_conv1d.weight"), &delta.convolution.weight.tensor, of_channels);
        self.claim(part("ssm_dt.bias"), &delta.step_bias.tensor, of_heads);
        self.claim(part("ssm_a"), &delta.rates.tensor, of_heads);
        delta.rate_form = RateForm::Negative;
        self.norm(&mut delta.norm, &part("ssm_norm"));
        self.claim(part("ssm_out.weight"), &delta.output.weight.tensor, columns);
    }

    pub(super) fn mamba(&mut self, mamba: &mut MambaConfig, block: &str) {
        let part = |name: &str| format!("{block}.{name}");
        self.linear(&mut mamba.input, &part("ssm_in"), None);
        self.convolution(&mamba.convolution, &part("ssm_conv1d"));
        self.keep(&mamba.step_bias, &part("ssm_dt.bias"));
        self.keep(&mamba.rates, &part("ssm_a"));
        mamba.rate_form = RateForm::Negative;
        self.keep(&mamba.skips, &part("ssm_d"));
        self.norm(&mut mamba.norm, &part("ssm_norm"));
        // The file has a row for each group.
        if let Some(claim) = self.claims.get_mut(&part("ssm_norm.weight")) {
            claim.stored_shape = Some(vec![mamba.groups, mamba.inner() / mamba.groups.max(1)]);
        }
        self.linear(&mut mamba.output, &part("ssm_out"), None);
    }

    fn convolution(&mut self, convolution: &ConvolutionConfig, part: &str) {
        self.keep(&convolution.weight, &format!("{part}.weight"));
        if let Some(bias) = &convolution.bias {
            self.keep(bias, &format!("{part}.bias"));
        }
    }

    /// Dense layers whose rows are picked from one tensor in both formats.
    pub(super) fn same_rows(&mut self, linears: &[&LinearConfig], part: &str) {
        for linear in linears {
            self.keep(&linear.weight, &format!("{part}.weight"));
            if let Some(bias) = &linear.bias {
                self.keep(bias, &format!("{part}.bias"));
            }
        }
    }
}
