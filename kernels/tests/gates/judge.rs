//! What a compiler and a disassembler say about a kernel, and what is wrong with that.

use std::fmt;

/// A kernel for one machine.
#[derive(Clone, Default, Debug)]
pub(crate) struct Kernel {
    /// Such as `ccl_interpret_f32_sum_ll`.
    pub(crate) name: String,
    /// The capability: 90 is 9.0.
    pub(crate) machine: u32,
    /// Of a thread.
    pub(crate) registers: u32,
    /// Bytes of the stack frames of the kernel and of all functions that it calls.
    pub(crate) stack_bytes: u32,
    /// Bytes that they store and load because registers did not suffice.
    pub(crate) spilled_bytes: u32,
    /// What the assembler took.
    pub(crate) compile_ms: f64,
    /// The instructions, without operands.
    pub(crate) instructions: Vec<String>,
}

impl Kernel {
    /// Instructions of this name, or of this name and more after a point.
    fn count(&self, name: &str) -> usize {
        let is = |found: &&String| {
            found.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.instructions.iter().filter(is).count()
    }

    /// Whether it is the interpreter for this protocol; that of groups is for all.
    fn follows(&self, protocol: &str) -> bool {
        self.name.ends_with(&format!("_{protocol}")) || self.name.starts_with(GROUP)
    }

    /// Accesses of 16 bytes whose halves carry a flag each: those of ll, which only the kernel of groups has beside others.
    fn lines_that_may_tear(&self) -> usize {
        if self.name.starts_with(GROUP) { LINES_OF_LL } else { 0 }
    }

    /// Accesses of 16 bytes that lanes make together, and those of them before which nothing brings the lanes together.
    fn accesses_of_lines(&self) -> (usize, usize) {
        let is_line =
            |name: &str| name.starts_with("LDG.E.128.STRONG") || name.starts_with("STG.E.128.STRONG");
        let lines = self.instructions.iter().enumerate().filter(|(_, name)| is_line(name));
        let meets = |name: &String| MEETS.iter().any(|one| name.starts_with(one));
        let alone = |at: usize| !self.instructions[at.saturating_sub(SHORTLY)..at].iter().any(meets);
        (lines.clone().count(), lines.filter(|(at, _)| alone(*at)).count())
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kernel { name, machine, registers, stack_bytes, spilled_bytes, compile_ms, .. } = self;
        write!(
            f,
            "{name} sm_{machine}: {registers} registers, stack {stack_bytes} B, spilled {spilled_bytes} B, "
        )?;
        write!(f, "{} instructions, assembled in {compile_ms:.0} ms", self.instructions.len())
    }
}

/// The kernels of one file, by what `ptxas -v` and `nvdisasm -c` said.
pub(crate) fn kernels(machine: u32, log: &str, assembly: &str) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for line in log.lines() {
        if let Some(name) = between(line, "Compiling entry function '", "'") {
            kernels.push(Kernel { name: name.to_owned(), machine, ..Kernel::default() });
        }
        let Some(kernel) = kernels.last_mut() else { continue };
        kernel.stack_bytes += number_before(line, " bytes stack frame").unwrap_or(0);
        kernel.spilled_bytes += number_before(line, " bytes spill stores").unwrap_or(0);
        kernel.spilled_bytes += number_before(line, " bytes spill loads").unwrap_or(0);
        kernel.registers = kernel.registers.max(number_before(line, " registers").unwrap_or(0));
        kernel.compile_ms +=
            between(line, "Compile time = ", " ms").and_then(|ms| ms.parse().ok()).unwrap_or(0.0);
    }
    for kernel in &mut kernels {
        kernel.instructions = instructions(assembly, &kernel.name);
    }
    kernels
}

/// The names of the instructions in a kernel's section, which the functions that it calls share.
fn instructions(assembly: &str, kernel: &str) -> Vec<String> {
    let section = format!(".text.{kernel}:");
    let lines = assembly.lines().skip_while(|line| line.trim() != section).skip(1);
    let lines = lines.take_while(|line| !line.starts_with(".text."));
    lines.filter_map(instruction).map(str::to_owned).collect()
}

/// Of a line such as `  /*0a40*/   @!P4 LDG.E.128 R40, desc[UR6][R80.64] ;`.
fn instruction(line: &str) -> Option<&str> {
    let (offset, text) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    u32::from_str_radix(offset, 16).ok()?;
    text.split_whitespace().find(|word| !word.starts_with('@')).map(|word| word.trim_end_matches(';'))
}

/// Registers of a thread and instructions of each kernel, by machine, as `docs/measuring.md` has them. Kernels come by name.
pub(crate) fn table(kernels: &[Kernel], machines: &[u32]) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let columns = machines.iter().map(|machine| format!("sm_{machine}"));
    let head = row(["registers, instructions".to_owned()].into_iter().chain(columns).collect());
    let rule = format!("|---|{}\n", "---:|".repeat(machines.len()));
    let rows = kernels.chunk_by(|one, next| one.name == next.name).map(|of_name| {
        let name =
            of_name[0].name.trim_start_matches("ccl_interpret_").trim_start_matches("ccl_").replace('_', " ");
        let cell = |machine: &u32| {
            let kernel = of_name.iter().find(|kernel| kernel.machine == *machine);
            kernel.map_or_else(String::new, |kernel| {
                format!("{}, {}", kernel.registers, kernel.instructions.len())
            })
        };
        row([name].into_iter().chain(machines.iter().map(cell)).collect())
    });
    [head, rule].into_iter().chain(rows).collect()
}

/// What is wrong with a kernel of a common dtype, in words.
pub(crate) fn objections(kernel: &Kernel) -> Vec<String> {
    let mut found = Vec::new();
    let mut object = |fault: bool, text: String| {
        if fault {
            found.push(format!("{} for sm_{}: {text}", kernel.name, kernel.machine));
        }
    };
    object(kernel.registers == 0, "the assembler's log does not say how many registers it has".to_owned());
    object(kernel.instructions.is_empty(), "the disassembly does not have it".to_owned());
    object(
        kernel.registers > MOST_REGISTERS,
        format!("{} registers; at most {MOST_REGISTERS} leave room for a block", kernel.registers),
    );
    object(
        kernel.spilled_bytes > 0,
        format!("it spills {} bytes; shorten what lives across calls", kernel.spilled_bytes),
    );
    let local = kernel.count("LDL") + kernel.count("STL");
    object(
        kernel.stack_bytes > 0 || local > 0,
        format!("{local} accesses of local memory, a stack of {} bytes; expected none", kernel.stack_bytes),
    );
    let moves = MOVES.iter().filter(|(protocol, ..)| kernel.follows(protocol));
    for (_, instruction, least) in moves {
        let count = kernel.count(instruction);
        object(count < *least, format!("{count} 16-byte accesses {instruction}; expected at least {least}"));
    }
    let stale = kernel
        .instructions
        .iter()
        .filter(|name| name.starts_with("LD") && name.contains(".CONSTANT"))
        .count();
    object(
        stale > 0,
        format!("{stale} loads through a cache that no acquire empties; peers write what kernels read"),
    );
    let (lines, alone) = kernel.accesses_of_lines();
    object(
        kernel.follows("ll128") && alone > kernel.lines_that_may_tear(),
        format!(
            "{alone} of {lines} accesses of lines are made where lanes of a warp may be apart, which tears lines"
        ),
    );
    found
}

fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    line.split_once(before)?.1.split_once(after).map(|(inner, _)| inner)
}

fn number_before(line: &str, unit: &str) -> Option<u32> {
    line.split_once(unit)?.0.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// 512 threads are 16 warps, so a quarter of a multiprocessor has 4, and its 16,384 registers are 128 for each thread.
const MOST_REGISTERS: u32 = 128;

/// How machine code brings a warp together, or looks whether it is: `bar.warp.sync`, by generation. The votes behind a load are
/// among them, and come too late for it.
const MEETS: [&str; 3] = ["WARPSYNC", "BRA.DIV", "BRA.CONV"];
/// So many instructions before an access that nothing parts the warp in between.
const SHORTLY: usize = 12;

/// How a protocol moves what it moves most, and how often that must stand in its kernel: four loads under way for simple.
const MOVES: [(&str, &str, usize); 6] = [
    ("simple", "LDG.E.128", 4),
    ("simple", "STG.E.128", 4),
    ("ll", "LDG.E.128.STRONG", 1),
    ("ll", "STG.E.128.STRONG", 1),
    ("ll128", "LDG.E.128.STRONG", 1),
    ("ll128", "STG.E.128.STRONG", 1),
];

/// How the kernels of groups are called.
const GROUP: &str = "ccl_group_";
/// What the interpreter that moves bytes under ll has: loads of a first and of a second input, stores of an output.
const LINES_OF_LL: usize = 3;

mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'ccl_interpret_f32_sum_ll' for 'sm_90'
ptxas info    : Function properties for ccl_interpret_f32_sum_ll
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 56 registers, used 1 barriers
ptxas info    : Compile time = 492.331 ms
ptxas info    : Function properties for a_leaf
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
";
    const ASSEMBLY: &str = "
.text.ccl_interpret_f32_sum_ll128:
        /*0000*/                   LDL R1, [R2] ;
.text.ccl_interpret_f32_sum_ll:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
.L_x_1:
        /*bc40*/               @P0 LDG.E.128.STRONG.SYS R16, desc[UR12][R10.64] ;
        /*bc50*/              @!P4 STG.E.128.STRONG.SYS desc[UR12][R10.64], R4 ;
        /*bc60*/                   EXIT;
.text.ccl_interpret_f32_sum_simple:
        /*0000*/                   STL [R1], R2 ;
";

    #[test]
    fn what_the_assembler_and_the_disassembler_say_is_understood() {
        let kernels = kernels(90, LOG, ASSEMBLY);
        let [kernel] = &kernels[..] else { panic!("{kernels:?}") };
        assert_eq!((kernel.registers, kernel.stack_bytes, kernel.spilled_bytes), (56, 8, 16));
        assert_eq!(kernel.instructions, ["LDC", "LDG.E.128.STRONG.SYS", "STG.E.128.STRONG.SYS", "EXIT"]);
        assert_eq!((kernel.count("LDG.E.128"), kernel.count("LDG.E.12"), kernel.count("LDL")), (1, 0, 0));
    }

    #[test]
    fn a_table_has_a_row_for_each_kernel() {
        let [on_90] = &kernels(90, LOG, ASSEMBLY)[..] else { panic!("one kernel") };
        let on_80 = Kernel { machine: 80, registers: 48, ..on_90.clone() };
        let other = Kernel { name: "ccl_interpret_f32_sum_ll128".to_owned(), ..on_90.clone() };
        let expected = "\
| registers, instructions | sm_80 | sm_90 |
|---|---:|---:|
| f32 sum ll | 48, 4 | 56, 4 |
| f32 sum ll128 |  | 56, 4 |
";
        assert_eq!(table(&[on_80, on_90.clone(), other], &[80, 90]), expected);
    }

    #[test]
    fn every_fault_is_named() {
        let [spills] = &kernels(90, LOG, ASSEMBLY)[..] else { panic!("one kernel") };
        let good = Kernel { stack_bytes: 0, spilled_bytes: 0, ..spills.clone() };
        assert_eq!(objections(&good), Vec::<String>::new());
        let lines = ["BRA.DIV", "NOP", "LDG.E.128.STRONG.SYS", "WARPSYNC.ALL", "STG.E.128.STRONG.SYS"];
        let name = || "ccl_interpret_f32_sum_ll128".to_owned();
        let with = |instructions: &[&str]| instructions.iter().map(|&name| name.to_owned()).collect();
        let faults = [
            (spills.clone(), "spills 16 bytes"),
            (Kernel { stack_bytes: 8, ..good.clone() }, "local memory"),
            (Kernel { registers: 129, ..good.clone() }, "129 registers"),
            (Kernel { registers: 0, ..good.clone() }, "does not say"),
            (Kernel { instructions: Vec::new(), ..good.clone() }, "does not have it"),
            (Kernel { instructions: with(&["LDG.E.128", "STG.E.128"]), ..good.clone() }, "LDG.E.128.STRONG"),
            (Kernel { instructions: with(&["LDL.LU"]), ..good.clone() }, "1 accesses of local memory"),
            (
                Kernel { instructions: with(&["LDG.E.64.CONSTANT"]), ..good.clone() },
                "1 loads through a cache",
            ),
            (Kernel { name: name(), ..good.clone() }, "2 of 2 accesses of lines"),
            (
                Kernel {
                    name: name(),
                    instructions: with(&[&["LDG.E.128.STRONG"], &lines[..]].concat()),
                    ..good.clone()
                },
                "1 of 3",
            ),
        ];
        for (kernel, text) in faults {
            let objections = objections(&kernel);
            assert!(objections.iter().any(|found| found.contains(text)), "{text}: {objections:?}");
        }
        assert_eq!(
            objections(&Kernel { name: name(), instructions: with(&lines), ..good }),
            Vec::<String>::new()
        );
    }
}
