//! Four ranks, each a thread of this process, add up their vectors.

use ccl::{ReduceOp, Result};

fn main() -> Result<()> {
    ccl::local::run(4, |comm| {
        let mine = vec![comm.rank().0 as f32; 1024];
        let mut sum = vec![0.0; 1024];
        comm.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;
        println!("rank {} of {}: {}", comm.rank(), comm.size(), sum[0]);
        assert_eq!(sum, vec![6.0; 1024]);
        Ok(())
    })?;
    Ok(())
}
