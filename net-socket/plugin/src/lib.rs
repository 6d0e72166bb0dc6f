//! `libccl_net_socket.so`: the socket network as a plugin that is loaded.

ccl_plugin::export_net!(socket::SocketNet);
