//! The tables: a name, then functions that return NCCL's results.

use std::ffi::{c_char, c_int, c_void};

use super::parts::{Attributes, CommConfig, DeviceHandle, Logger, ProfilerCallback, VirtualDevice};
use super::properties::{
    PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12,
};

type Ptr = *mut c_void;
type Out = *mut *mut c_void;
type Offload = *mut *mut DeviceHandle;

/// Declares functions of the contract by their parameters.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: ($($parameter:ty),* $(,)?);)*) => {
        $($(#[$doc])* pub(crate) type $name = unsafe extern "C" fn($($parameter),*) -> c_int;)*
    };
}

/// The forms of `init`.
pub(crate) mod init {
    use super::*;

    functions! {
        /// Versions 6 to 9.
        Logged: (Logger);
        /// Version 10.
        Profiled: (Logger, ProfilerCallback);
        /// Versions 11 and 12, for every communicator: where its context goes, its hash, what it asks for.
        PerCommunicator: (Out, u64, *mut CommConfig, Logger, ProfilerCallback);
    }
}

/// The forms of `listen`: device, handle, where the listener goes.
pub(crate) mod listen {
    use super::*;

    functions! {
        /// Versions 6 to 10.
        OnDevice: (c_int, Ptr, Out);
        /// Versions 11 and 12.
        InContext: (Ptr, c_int, Ptr, Out);
    }
}

/// The forms of `connect`: device, handle, where the comm goes.
pub(crate) mod connect {
    use super::*;

    functions! {
        /// Version 6.
        Plain: (c_int, Ptr, Out);
        /// Versions 7 to 9.
        Offloaded: (c_int, Ptr, Out, Offload);
        /// Version 10.
        Configured: (c_int, *mut CommConfig, Ptr, Out, Offload);
        /// Versions 11 and 12.
        InContext: (Ptr, c_int, Ptr, Out, Offload);
    }
}

/// The forms of `isend`: comm, data, length, tag, registration, where the request goes.
pub(crate) mod isend {
    use super::*;

    functions! {
        /// Versions 6 to 8.
        Narrow: (Ptr, Ptr, c_int, c_int, Ptr, Out);
        /// Version 9.
        Wide: (Ptr, Ptr, usize, c_int, Ptr, Out);
        /// Versions 10 and up, with a handle for the profiler before the request.
        Profiled: (Ptr, Ptr, usize, c_int, Ptr, Ptr, Out);
    }
}

/// The forms of `irecv`: comm, number, data, lengths, tags, registrations, where the request goes.
pub(crate) mod irecv {
    use super::*;

    functions! {
        /// Versions 6 to 8.
        Narrow: (Ptr, c_int, Out, *mut c_int, *mut c_int, Out, Out);
        /// Version 9.
        Wide: (Ptr, c_int, Out, *mut usize, *mut c_int, Out, Out);
        /// Versions 10 and up, with handles for the profiler before the request.
        Profiled: (Ptr, c_int, Out, *mut usize, *mut c_int, Out, Out, Out);
    }
}

functions! {
    AcceptPlain: (Ptr, Out);
    AcceptOffloaded: (Ptr, Out, Offload);
    RegMrNarrow: (Ptr, Ptr, c_int, c_int, Out);
    RegMrWide: (Ptr, Ptr, usize, c_int, Out);
    RegMrDmaBuf: (Ptr, Ptr, usize, c_int, u64, c_int, Out);
    IFlush: (Ptr, c_int, Out, *mut c_int, Out, Out);
    Test: (Ptr, *mut c_int, *mut c_int);
    OnObject: (Ptr);
    OnTwo: (Ptr, Ptr);
    Devices: (*mut c_int);
    GetDeviceMr: (Ptr, Ptr, Out);
    IRecvConsumed: (Ptr, c_int, Ptr);
    MakeVDevice4: (*mut c_int, *mut VirtualDevice<4>);
    MakeVDevice8: (*mut c_int, *mut VirtualDevice<8>);
    SetNetAttr: (Ptr, *mut Attributes);
    GetPropertiesV6: (c_int, *mut PropertiesV6);
    GetPropertiesV7: (c_int, *mut PropertiesV7);
    GetPropertiesV8: (c_int, *mut PropertiesV8);
    GetPropertiesV9: (c_int, *mut PropertiesV9);
    GetPropertiesV11: (c_int, *mut PropertiesV11);
    GetPropertiesV12: (c_int, *mut PropertiesV12);
}

/// Declares a table: the forms of what differs, then what is appended, with the offset of each.
macro_rules! table {
    (
        $(#[$doc:meta])* $name:ident, $bytes:literal: $init:ty, $properties:ty, $listen:ty, $connect:ty, $accept:ty,
        $reg_mr:ty, $isend:ty, $irecv:ty; $($entry:ident: $function:ty = $offset:literal,)*
    ) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            pub(crate) name: *const c_char,
            pub(crate) init: Option<$init>,
            pub(crate) devices: Option<Devices>,
            pub(crate) get_properties: Option<$properties>,
            pub(crate) listen: Option<$listen>,
            pub(crate) connect: Option<$connect>,
            pub(crate) accept: Option<$accept>,
            pub(crate) reg_mr: Option<$reg_mr>,
            pub(crate) reg_mr_dma_buf: Option<RegMrDmaBuf>,
            pub(crate) dereg_mr: Option<OnTwo>,
            pub(crate) isend: Option<$isend>,
            pub(crate) irecv: Option<$irecv>,
            pub(crate) iflush: Option<IFlush>,
            pub(crate) test: Option<Test>,
            pub(crate) close_send: Option<OnObject>,
            pub(crate) close_recv: Option<OnObject>,
            pub(crate) close_listen: Option<OnObject>,
            $(pub(crate) $entry: Option<$function>,)*
        }

        const _: () = {
            use std::mem::offset_of;
            assert!(size_of::<$name>() == $bytes);
            assert!(offset_of!($name, init) == 8);
            assert!(offset_of!($name, connect) == 40);
            assert!(offset_of!($name, isend) == 80);
            assert!(offset_of!($name, test) == 104);
            assert!(offset_of!($name, close_listen) == 128);
            $(assert!(offset_of!($name, $entry) == $offset);)*
        };
    };
}

table! {
    /// The first that is adapted.
    NetV6, 136: init::Logged, GetPropertiesV6, listen::OnDevice, connect::Plain, AcceptPlain, RegMrNarrow,
    isend::Narrow, irecv::Narrow;
}

table! {
    /// Devices may complete receives by themselves.
    NetV7, 152: init::Logged, GetPropertiesV7, listen::OnDevice, connect::Offloaded, AcceptOffloaded, RegMrNarrow,
    isend::Narrow, irecv::Narrow;
    get_device_mr: GetDeviceMr = 136,
    irecv_consumed: IRecvConsumed = 144,
}

table! {
    /// Registrations of any length.
    NetV8, 152: init::Logged, GetPropertiesV8, listen::OnDevice, connect::Offloaded, AcceptOffloaded, RegMrWide,
    isend::Narrow, irecv::Narrow;
    get_device_mr: GetDeviceMr = 136,
    irecv_consumed: IRecvConsumed = 144,
}

table! {
    /// Messages of any length, and virtual devices.
    NetV9, 160: init::Logged, GetPropertiesV9, listen::OnDevice, connect::Offloaded, AcceptOffloaded, RegMrWide,
    isend::Wide, irecv::Wide;
    get_device_mr: GetDeviceMr = 136,
    irecv_consumed: IRecvConsumed = 144,
    make_v_device: MakeVDevice4 = 152,
}

table! {
    /// Traffic classes, and events of the plugin's own.
    NetV10, 160: init::Profiled, GetPropertiesV9, listen::OnDevice, connect::Configured, AcceptOffloaded, RegMrWide,
    isend::Profiled, irecv::Profiled;
    get_device_mr: GetDeviceMr = 136,
    irecv_consumed: IRecvConsumed = 144,
    make_v_device: MakeVDevice4 = 152,
}

table! {
    /// A context for every communicator.
    NetV11, 176: init::PerCommunicator, GetPropertiesV11, listen::InContext, connect::InContext, AcceptOffloaded,
    RegMrWide, isend::Profiled, irecv::Profiled;
    get_device_mr: GetDeviceMr = 136,
    irecv_consumed: IRecvConsumed = 144,
    make_v_device: MakeVDevice4 = 152,
    finalize: OnObject = 160,
    set_net_attr: SetNetAttr = 168,
}

table! {
    /// Rails and planes.
    NetV12, 176: init::PerCommunicator, GetPropertiesV12, listen::InContext, connect::InContext, AcceptOffloaded,
    RegMrWide, isend::Profiled, irecv::Profiled;
    get_device_mr: GetDeviceMr = 136,
    irecv_consumed: IRecvConsumed = 144,
    make_v_device: MakeVDevice8 = 152,
    finalize: OnObject = 160,
    set_net_attr: SetNetAttr = 168,
}
