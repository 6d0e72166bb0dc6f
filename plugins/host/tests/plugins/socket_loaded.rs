//! The socket network as a library, as the crate `ccl-net-socket-plugin` makes it.

ccl_plugin::export_net!(ccl_net_socket::SocketNet);
