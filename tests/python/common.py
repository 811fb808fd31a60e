"""What the tests in Python have in common: kubectl, waiting, and messages of gRPC from their declarations."""
import subprocess
import sys
import time


def kubectl_with(kubeconfig):
    """kubectl of one cluster: takes its arguments, and what it reads if it reads; answers with what it prints."""

    def kubectl(*arguments, given=None):
        command = ["kubectl", "--kubeconfig", kubeconfig, *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    return kubectl


def until(what, question, seconds=60, pause=0.1):
    """Asks until the answer counts, and answers with that. `what` is told of a wait in vain; it may be asked for, too."""
    end = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(pause)


def compile_protos(protos, folder, names):
    """Makes modules of these declarations in `folder`, from where they can be imported then."""
    from grpc_tools import protoc

    flags = [f"-I{protos}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main(["protoc", *flags, *(f"{protos}/{name}.proto" for name in names)]) == 0
    sys.path.insert(0, folder)
