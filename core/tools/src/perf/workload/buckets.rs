//! How gradients are gathered into buckets: the rule of PyTorch's `DistributedDataParallel`.

/// Bytes of each bucket in the order in which they become ready. Gradients come in the reverse order of
/// the parameters; a bucket is full with the gradient that reaches its limit, which is lower for the
/// first so that communication begins early.
pub(crate) fn by_arrival(parameter_counts: &[usize], element_bytes: usize) -> Vec<u64> {
    let mut buckets = Vec::new();
    let mut filled = 0;
    for count in parameter_counts.iter().rev() {
        filled += (count * element_bytes) as u64;
        let limit = if buckets.is_empty() { FIRST_BUCKET_BYTES } else { BUCKET_BYTES };
        if filled >= limit {
            buckets.push(std::mem::take(&mut filled));
        }
    }
    buckets.extend(Some(filled).filter(|bytes| *bytes > 0));
    buckets
}

const FIRST_BUCKET_BYTES: u64 = 1 << 20;
const BUCKET_BYTES: u64 = 25 << 20;

#[cfg(test)]
mod tests {
    use super::super::model::Model;
    use super::*;

    #[test]
    fn a_bucket_is_full_when_it_reaches_its_limit() {
        let elements = |bytes: u64| bytes as usize / 4;
        let first = elements(FIRST_BUCKET_BYTES);
        let later = elements(BUCKET_BYTES);
        assert_eq!(
            by_arrival(&[1, later, later - 1, 1, first - 1, 1], 4),
            [FIRST_BUCKET_BYTES, BUCKET_BYTES, BUCKET_BYTES, 4]
        );
        assert_eq!(by_arrival(&[first, 3], 4), [FIRST_BUCKET_BYTES + 12]);
        assert!(by_arrival(&[], 4).is_empty());
    }

    /// What `torch.distributed._compute_bucket_assignment_by_size` answers for the same parameters.
    #[test]
    fn known_models_have_the_buckets_that_torch_makes() {
        let buckets = |model: Model| by_arrival(&model.parameter_counts(), 4);
        assert_eq!(buckets(Model::Resnet50), [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]);
        let gpt2 = [&[9_446_400][..], &[28_351_488; 11], &[176_446_464]].concat();
        assert_eq!(buckets(Model::Gpt2), gpt2);
        let layers = [33_591_296, 29_396_992, 37_781_504];
        let bert = [&[4_198_400, 33_583_104][..], &layers.repeat(11), &layers[..2], &[131_330_048]].concat();
        assert_eq!(buckets(Model::BertLarge), bert);
    }
}
