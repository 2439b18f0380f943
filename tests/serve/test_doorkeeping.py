"""Sockets of our servers."""

import socket

from turnwise.doorkeeping import listen


def test_connections_do_not_hold_back_the_second_part_of_an_answer():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
