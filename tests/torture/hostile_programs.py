"""What the programs of the campaign try, by name. `escaped(attempt)` says so when the attempt works."""

from __future__ import annotations

PRELUDE = """
import ctypes, mmap, os, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
print("ready", flush=True)

def escaped(attempt):
    try:
        result = attempt()
    except Exception as error:
        print("stopped", type(error).__name__)
    else:
        print("ESCAPED", repr(result)[:500], flush=True)

def refused(name, *arguments):
    if getattr(libc, name)(*arguments) >= 0:
        print("ESCAPED", name, flush=True)
"""

_READING = {
    "read the host's file": "escaped(lambda: open(@CANARY).read())",
    "read it through the root of the first process": "escaped(lambda: open('/proc/1/root' + @CANARY).read())",
    "read it through its own root": "escaped(lambda: open('/proc/self/root' + @CANARY).read())",
    "read it by climbing": "escaped(lambda: open('../' * 40 + @CANARY).read())",
    "read it through a link": "os.symlink(@CANARY, '/tmp/l'); escaped(lambda: open('/tmp/l').read())",
    "read it through a working folder": "escaped(lambda: open('/proc/1/cwd' + @CANARY).read())",
    "read it with another program": "escaped(lambda: subprocess.check_output(['/bin/cat', @CANARY]))",
    "read it through a mapped file": "escaped(lambda: mmap.mmap(os.open(@CANARY, os.O_RDONLY), 0))",
    "list the host's folder": "escaped(lambda: os.listdir(os.path.dirname(@CANARY)))",
    "read passwords": "escaped(lambda: open('/etc/shadow').read())",
    "read the users": "escaped(lambda: open('/etc/passwd').read())",
    "list homes": "escaped(lambda: os.listdir('/root') or os.listdir('/home'))",
    "read physical memory": "escaped(lambda: open('/dev/mem', 'rb').read(1))",
    "read the kernel's memory": "escaped(lambda: open('/proc/kcore', 'rb').read(1))",
    "read a disk": "escaped(lambda: [open('/dev/' + n, 'rb') for n in ('sda', 'vda', 'nvme0n1') if True])",
    "read open descriptors": """
        for name in os.listdir('/proc/self/fd'):
            if int(name) > 4:
                escaped(lambda: os.read(int(name), 100) or 1 / 0)
    """,
    "read other processes": """
        for name in os.listdir('/proc'):
            if name.isdigit() and int(name) > 2 and int(name) != os.getpid():
                escaped(lambda: open(f'/proc/{name}/cmdline').read() or 1 / 0)
    """,
    "read the memory of the first process": "escaped(lambda: open('/proc/1/mem', 'rb').read(1))",
}
_WRITING = {
    "write the host's file": "escaped(lambda: open(@CANARY, 'w').write('x'))",
    "remove the host's file": "escaped(lambda: os.remove(@CANARY))",
    "write it through a link": "os.symlink(@CANARY, '/tmp/l'); escaped(lambda: open('/tmp/l', 'w').write('x'))",
    "write beside the program": "escaped(lambda: open('/code/x', 'w'))",
    "change the program": "escaped(lambda: open('/code/main.py', 'a').write('x'))",
    "change the interpreter": "escaped(lambda: open(sys.executable, 'ab').write(b'x'))",
    "change its permissions": "escaped(lambda: os.chmod('/code/main.py', 0o777))",
    "write to the system": "escaped(lambda: open('/usr/x', 'w'))",
    "write to the root": "escaped(lambda: os.mkdir('/x'))",
    "write a kernel setting": "escaped(lambda: open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/sh'))",
    "trigger the kernel": "escaped(lambda: open('/proc/sysrq-trigger', 'w').write('b'))",
    "save itself from the memory killer": """
        file = os.open('/proc/self/oom_score_adj', os.O_WRONLY)
        escaped(lambda: os.write(file, b'-1000'))
    """,
    "make a device": "escaped(lambda: os.mknod('/tmp/d', 0o20666, os.makedev(1, 1)))",
    "link to the program": "escaped(lambda: os.link('/usr/bin/env', '/tmp/e'))",
    "write shared memory": "escaped(lambda: open('/dev/shm/x', 'w'))",
}
_POWERS = {
    "become root": "escaped(lambda: os.setuid(0))",
    "become another group": "escaped(lambda: os.setgroups([0]))",
    "kill the host's process": "escaped(lambda: os.kill(@PROCESS, 9))",
    "kill everything": "escaped(lambda: os.kill(1, 0) or 1 / 0)",
    "change the root": "escaped(lambda: os.chroot('/tmp'))",
    "mount": "refused('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
    "unmount": "refused('umount2', b'/tmp', 2)",
    "make a user namespace": "refused('unshare', 0x10000000)",
    "make a mount namespace": "refused('unshare', 0x00020000)",
    "join a namespace": "refused('setns', os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)",
    "trace the first process": "refused('ptrace', 16, 1, 0, 0)",
    "reboot": "refused('reboot', 0x01234567)",
    "set the clock": "escaped(lambda: time.clock_settime(time.CLOCK_REALTIME, 0))",
    "set the name of the host": "escaped(lambda: socket.sethostname('x'))",
    "raise its own limits": """
        import resource
        escaped(lambda: resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40)))
    """,
    "go before others": "escaped(lambda: os.nice(-10))",
    "load a module of the kernel": "refused('syscall', 175, 0, 0, 0)",
    "run a set-user-id program": """
        done = subprocess.run(['/bin/su', '-c', 'id'], capture_output=True, stdin=subprocess.DEVNULL)
        escaped(lambda: done.stdout or 1 / 0)
    """,
}
_NETWORK = {
    "reach the host": "escaped(lambda: socket.create_connection(@ADDRESS, timeout=1))",
    "ask for an address": "escaped(lambda: socket.getaddrinfo('example.com', 80))",
    "listen": "escaped(lambda: socket.create_server(('0.0.0.0', 8080)))",
    "send raw packets": "escaped(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
    "read packets": "escaped(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
    "talk to the kernel": "escaped(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))",
    "talk to a hypervisor": "escaped(lambda: socket.socket(40, socket.SOCK_STREAM))",
}
_EXHAUSTION = {
    "take memory at once": "escaped(lambda: len(bytearray(2**31)))",
    "take memory by mapping": "escaped(lambda: mmap.mmap(-1, 2**31))",
    "take memory bit by bit": """
        taken = []
        escaped(lambda: [taken.append(bytearray(2**20)) for _ in range(2000)] and None)
    """,
    "take memory by one text": "escaped(lambda: len('x' * 2**31))",
    "take memory by a number": "escaped(lambda: (10**9) ** (10**9))",
    "nest calls without end": "sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "nest a parser": "escaped(lambda: compile('(' * 10**5 + ')' * 10**5, '', 'eval'))",
    "fork without end": """
        while True:
            try:
                os.fork()
            except OSError:
                pass
    """,
    "start threads without end": """
        def start():
            for _ in range(200):
                threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        escaped(start)
    """,
    "open files without end": "escaped(lambda: [open('/code/main.py') for _ in range(1000)] and None)",
    "fill the disk": "escaped(lambda: [open(f'/tmp/{i}', 'wb').write(bytes(10**6)) for i in range(100)])",
    "write a large file": "escaped(lambda: open('/tmp/x', 'wb').write(bytes(3 * 10**6)))",
    "make a sparse file": "escaped(lambda: os.truncate(os.open('/tmp/x', os.O_CREAT | os.O_RDWR), 2**40))",
    "make folders without end": "escaped(lambda: [os.mkdir(f'/tmp/{i}') for i in range(10**5)] and None)",
    "make pipes without end": "escaped(lambda: [os.pipe() for _ in range(1000)] and None)",
    "write without end": "while True: print('x' * 10**4)",
    "complain without end": "while True: sys.stderr.write('x' * 10**4)",
    "spin": "while True: pass",
    "spin beside itself": "[os.fork() for _ in range(3)]\nwhile True: pass",
    "sleep": "time.sleep(10**6)",
    "wait for the keyboard": "print(input())",
    "ignore every signal": """
        for number in range(1, 32):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        while True: time.sleep(1)
    """,
    "stop itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "outlive itself": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for descriptor in range(3): os.close(descriptor)
                time.sleep(10**6)
            os._exit(0)
    """,
    "close its output and stay": "os.close(1); os.close(2); time.sleep(10**6)",
    "search without end": "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
    "unpack a bomb": """
        import zlib
        packed = zlib.compress(bytes(2 * 10**8))
        escaped(lambda: [zlib.decompress(packed) for _ in range(9)])
    """,
    "crash": "ctypes.string_at(0)",
}
PROGRAMS = {**_READING, **_WRITING, **_POWERS, **_NETWORK, **_EXHAUSTION}

_IN_A_SHELL = {
    "read the users": "escaped(lambda: [line for line in open('/etc/passwd') if not line.startswith('user:')][0])",
    "read other processes": """
        for name in os.listdir('/proc'):
            if name.isdigit() and int(name) != os.getpid():
                escaped(lambda: open(f'/proc/{name}/cmdline').read().index(@COMMAND))
    """,
}
"""A terminal has a user and processes of its own: the host's must not be among them."""
SHELL_PROGRAMS = {
    name: text.replace("/code/main.py", "/code/program") for name, text in {**PROGRAMS, **_IN_A_SHELL}.items()
}
