"""In a process that has this folder in PYTHONPATH, torch computes on the fake GPU as soon as it is imported, for
scripts that know nothing of it: fake_gpu.environment(everywhere=True), or fake_gpu.py's command line."""

import importlib.abc
import importlib.util
import sys


class AfterTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            self.imports_torch = spec.loader.exec_module
            spec.loader.exec_module = self.exec_module
        return spec

    def exec_module(self, module):
        self.imports_torch(module)
        from on_fake_gpu import OnFakeGpu

        OnFakeGpu.everywhere()


sys.meta_path.insert(0, AfterTorch())
