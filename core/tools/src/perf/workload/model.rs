//! Published models, as the lengths of their parameters.

use std::str::FromStr;

/// A model whose parameters are known by heart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// ResNet-50 (He et al., "Deep Residual Learning for Image Recognition") as torchvision builds it.
    Resnet50,
    /// BERT-Large (Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers"), uncased, with
    /// its pooler and no task head.
    BertLarge,
    /// GPT-2 with 12 layers (Radford et al., "Language Models are Unsupervised Multitask Learners"), its
    /// output layer tied to the embedding.
    Gpt2,
}

impl Model {
    pub(crate) const ALL: [Model; 3] = [Model::Resnet50, Model::BertLarge, Model::Gpt2];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Model::Resnet50 => "resnet50",
            Model::BertLarge => "bert-large",
            Model::Gpt2 => "gpt2",
        }
    }

    /// Elements of each parameter, in the order in which the model registers them: roughly that of the
    /// forward pass, so that gradients come in the reverse order.
    pub(crate) fn parameter_counts(self) -> Vec<usize> {
        match self {
            Model::Resnet50 => resnet50(),
            Model::BertLarge => bert(24, 1024),
            Model::Gpt2 => gpt2(12, 768),
        }
    }
}

impl FromStr for Model {
    type Err = ();

    fn from_str(text: &str) -> Result<Model, ()> {
        Model::ALL.into_iter().find(|model| model.name() == text).ok_or(())
    }
}

/// Four stages of bottlenecks, in each of which the first widens what comes in by a projection.
fn resnet50() -> Vec<usize> {
    let mut counts = Vec::new();
    let mut convolution = |input: usize, output: usize, side: usize| {
        // Weights, then scale and shift of the normalisation behind them.
        counts.extend([input * output * side * side, output, output]);
    };
    convolution(3, 64, 7);
    let mut input = 64;
    for (width, blocks) in [(64, 3), (128, 4), (256, 6), (512, 3)] {
        let output = 4 * width;
        for block in 0..blocks {
            convolution(input, width, 1);
            convolution(width, width, 3);
            convolution(width, output, 1);
            if block == 0 {
                convolution(input, output, 1);
            }
            input = output;
        }
    }
    counts.extend(linear(input, 1000));
    counts
}

fn bert(layers: usize, width: usize) -> Vec<usize> {
    let norm = [width, width];
    let mut counts = vec![30_522 * width, 512 * width, 2 * width];
    counts.extend(norm);
    for _ in 0..layers {
        // Query, key, value, and the projection of what attention gave.
        counts.extend([linear(width, width); 4].concat());
        counts.extend(norm);
        counts.extend([linear(width, 4 * width), linear(4 * width, width)].concat());
        counts.extend(norm);
    }
    counts.extend(linear(width, width));
    counts
}

fn gpt2(layers: usize, width: usize) -> Vec<usize> {
    let norm = [width, width];
    let mut counts = vec![50_257 * width, 1024 * width];
    for _ in 0..layers {
        counts.extend([norm, linear(width, 3 * width), linear(width, width)].concat());
        counts.extend([norm, linear(width, 4 * width), linear(4 * width, width)].concat());
    }
    counts.extend(norm);
    counts
}

/// Weight and bias.
fn linear(input: usize, output: usize) -> [usize; 2] {
    [input * output, output]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The totals are those that the models' authors and the libraries that ship them give.
    #[test]
    fn models_have_their_published_sizes() {
        for (model, tensors, total) in [
            (Model::Resnet50, 161, 25_557_032),
            (Model::BertLarge, 391, 335_141_888),
            (Model::Gpt2, 148, 124_439_808),
        ] {
            let counts = model.parameter_counts();
            assert_eq!((counts.len(), counts.iter().sum::<usize>()), (tensors, total), "{model:?}");
            assert_eq!(model.name().parse(), Ok(model));
        }
    }
}
